//! Reports of other systems' users, acted out against classes, policy and ladder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use unfazed_fault::{
    Action, Backoff, Change, Class, Exit, Ladder, Latch, Origin, Policy, Quiet, Unusable, classify, of_exit,
};

const SECOND: Duration = Duration::from_secs(1);

/// What is done about a class that comes again and again.
fn actions(policy: &mut Policy, class: Class, times: u64) -> Vec<Action> {
    (0..times).map(|n| policy.decide(class, SECOND * n as u32, 0.0).action).collect()
}

/// oMLX 2029: "Server exited with code 6. Auto-restart failed after 3 attempts", after days, and a human had to come.
/// Restarts never end here: they are spaced, and the placement gets smaller.
#[test]
fn omlx_2029() {
    let mut backoff = Backoff::default();
    let mut policy = Policy::default();
    let mut ladder = Ladder::new(["full", "half the layers on the GPU", "CPU"], Quiet::default());
    let mut now = Duration::ZERO;
    for death in 1..=1000 {
        let wait = backoff.died(true, 0.5);
        assert!(wait <= 30 * SECOND, "death {death}: {wait:?}");
        let class = of_exit(Exit { code: Some(6), ..Exit::default() });
        let decision = policy.decide(class, now, 0.5);
        assert!(
            matches!(decision.action, Action::NewEngine | Action::StepDown),
            "death {death}: {decision:?}"
        );
        assert!(decision.wait <= 30 * SECOND, "death {death}: {decision:?}");
        if decision.action == Action::StepDown {
            ladder.step_down(class, now);
        }
        now += decision.wait + SECOND;
    }
    assert_eq!(ladder.name(), "CPU");
    // It works again, and in time all of it.
    for _ in 0..2 {
        now += ladder.needed();
        assert!(matches!(ladder.climb(now), Some(Change::Recovered { .. })));
    }
    assert_eq!(ladder.name(), "full");
}

/// ggml 1545: one failed command buffer latched an error for ever, and no later request was computed. An error belongs to
/// one generation of a device, and the rebuild clears it.
#[test]
fn ggml_1545() {
    let mut latch = Latch::default();
    let first = latch.generation();
    assert!(latch.report(first, Class::Timeout));
    // Later errors of the same device are of the first one's making.
    assert!(latch.report(first, Class::InnocentVictim));
    assert_eq!(latch.check(first), Err(Unusable::Faulted { generation: first, class: Class::Timeout }));

    let second = latch.rebuilt().unwrap();
    assert_eq!(latch.check(second), Ok(()));
    assert_eq!(latch.check(first), Err(Unusable::Stale { of: first, now: second }));
    // What the old device still reports does not reach the new one.
    assert!(!latch.report(first, Class::Timeout));
    assert_eq!((latch.check(second), latch.fault()), (Ok(()), None));
}

/// oMLX 3706: after a time-out the driver ignored all that this process submitted; the server lived, answered
/// `/v1/models` and computed nothing. Only another process helps, and it is started at once.
#[test]
fn omlx_3706_ignored_submissions_mean_a_new_process() {
    let log = "mx.synchronize(): [METAL] Command buffer execution failed: Caused GPU Timeout Error \
               (00000002:kIOGPUCommandBufferCallbackErrorTimeout)\n\
               [METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) \
               (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)";
    let class = classify(log).class;
    assert_eq!(class, Class::SubmissionsIgnored);
    let decision = Policy::default().decide(class, SECOND, 0.5);
    assert_eq!((decision.action, decision.wait), (Action::NewEngine, Duration::ZERO));
    assert!(!actions(&mut Policy::default(), class, 100).contains(&Action::RebuildDevice));

    let mut latch = Latch::default();
    let device = latch.generation();
    latch.report(device, Class::Timeout);
    latch.report(device, class);
    assert_eq!(latch.rebuilt(), Err(Unusable::Process { class }));
    assert!(latch.check(device).is_err());
}

/// llama.cpp 22214: work was ended for the display's sake, and every later request failed with "recreate the backend to
/// recover". It is recreated here, and what the device wrote is computed again.
#[test]
fn llamacpp_22214() {
    let log = "error: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)\n\
               backend is in error state from a previous command buffer failure - recreate the backend to recover\n\
               llama_decode: failed to decode, ret = -3";
    let (first, later) = (classify(log).class, classify("llama_decode: failed to decode, ret = -3").class);
    assert_eq!((first, later), (Class::Interactivity, Class::CommandBufferFailed));
    for class in [first, later] {
        assert_eq!(Policy::default().decide(class, SECOND, 0.5).action, Action::RebuildDevice, "{class}");
        assert!(class.spoils_memory(), "{class}");
    }
    // No request fails for it, however often it comes.
    let actions = actions(&mut Policy::default(), first, 100);
    assert!(!actions.contains(&Action::FailRequest));
    assert_eq!(actions.last(), Some(&Action::StepDown));
}

/// MLX 3390: an exception in the driver's callback ended the process without a word of the reason. Its crash report is
/// known for what it is, its signal is a death like others, and what it left in memory is not trusted.
#[test]
fn mlx_3390() {
    let report = "Exception Type:  EXC_CRASH (SIGABRT)\n\
                  Thread 12 Crashed::  Dispatch queue: com.Metal.CompletionQueueDispatch\n\
                  9   libmlx.dylib   mlx::core::gpu::check_error(MTL::CommandBuffer*) + 244";
    let class = classify(report).class;
    assert_eq!(class.name(), "metal_completion_sigabrt");
    assert_eq!((class.severity().name(), class.hint().name()), ("process_abort", "respawn_now"));
    assert!(class.spoils_memory());
    assert_eq!(Policy::default().decide(class, SECOND, 0.5).action, Action::NewEngine);
    assert_eq!(of_exit(Exit { signal: Some(6), ..Exit::default() }), Class::Killed);
}

/// Ollama 17902: the runner panicked on a GPU's time-out, and the client got a 500. The reason is the GPU, not the
/// panic around it, and it is cured inside the server: the request is not what fails.
#[test]
fn ollama_17902() {
    let error = "Error: 500 Internal Server Error: mlx runner failed: panic: mlx: [METAL] Command buffer execution \
                 failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout). at \
                 mlx/c/transforms.cpp:73 (exit: exit status 2)";
    let class = classify(error).class;
    assert_eq!((class, class.origin()), (Class::Timeout, Origin::Device));
    let expected =
        [Action::RebuildDevice, Action::RebuildDevice, Action::NewEngine, Action::StepDown, Action::StepDown];
    assert_eq!(actions(&mut Policy::default(), class, 5), expected);
}
