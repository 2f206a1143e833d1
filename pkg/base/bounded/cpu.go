package bounded

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ErrCPU is the cause of a context that CPU cancels.
var ErrCPU = errors.New("the limit of processor time is exceeded")

// CPU calls do on a thread of its own, with a context that is cancelled when the thread has used most of processor
// time, however loaded the machine is. do should not block, because it keeps its thread meanwhile. CPU reports whether
// the limit was exceeded.
func CPU(ctx context.Context, most time.Duration, do func(context.Context)) (exceeded bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, stop := Thread(ctx, most)
	defer stop()
	do(ctx)
	return context.Cause(ctx) == ErrCPU //nolint:errorlint // it is never wrapped
}

// Thread returns a context that is cancelled, with ErrCPU as the cause, when the current thread has used most of
// processor time. The caller has locked its goroutine to the thread. stop cancels the context too, and returns the time
// used until then. Any goroutine may call it.
func Thread(ctx context.Context, most time.Duration) (limited context.Context, stop func() time.Duration) {
	// The number of a thread's clock: CPUCLOCK_SCHED and CPUCLOCK_PERTHREAD_MASK of Linux's posix-timers.h.
	clock := int32(^unix.Gettid()<<3 | 6) //nolint:gosec // thread IDs are below 2^22
	begun, err := clockTime(clock)
	ctx, cancel := context.WithCancelCause(ctx)
	if err != nil {
		return ctx, func() time.Duration { cancel(nil); return 0 }
	}
	var check func()
	check = func() {
		now, err := clockTime(clock)
		switch rest := most - (now - begun); {
		case err != nil || ctx.Err() != nil: // the thread or the work has ended
		case rest <= 0:
			cancel(ErrCPU)
		default: // the thread cannot reach the limit sooner
			time.AfterFunc(rest, check)
		}
	}
	first := time.AfterFunc(most, check)
	return ctx, func() time.Duration {
		first.Stop()
		cancel(nil)
		now, err := clockTime(clock)
		if err != nil {
			return 0
		}
		return now - begun
	}
}

func clockTime(clock int32) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(clock, &t)
	return time.Duration(t.Nano()), err
}
