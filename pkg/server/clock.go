package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// clockStep is how far the machine's clock may be set while the process runs. Service account tokens of pods are
// renewed when twelve minutes of their lifetime are left.
const clockStep = 10 * time.Minute

// errClockSet ends the components of a process whose clock was set, so that they start again. Boards without a clock
// boot in 1970, and jump by decades when NTP answers: renewals and schedules that wait for a time would be late.
var errClockSet = errors.New("the machine's clock was set")

// serveAgain calls serve again each time it fails with errClockSet or errAddressLost.
func serveAgain(serve func() error) error {
	for {
		err := serve()
		again := errors.Is(err, errClockSet) || errors.Is(err, errAddressLost)
		if hung := (*run.HungError)(nil); !again || errors.As(err, &hung) {
			return err
		}
	}
}

// clock is a component that fails with errClockSet. A suspension does not set the clock.
type clock struct {
	run.Readiness
	began time.Duration // wallClock at the start
	log   *slog.Logger
}

func newClock(log *slog.Logger) *clock { return &clock{began: wallClock(), log: log} }

// step returns how far the clock was set since the start if that is more than clockStep, otherwise 0.
func (c *clock) step() time.Duration {
	if by := wallClock() - c.began; by.Abs() > clockStep {
		return by
	}
	return 0
}

// Name implements run.Component.
func (*clock) Name() string { return "clock" }

// Run implements run.Component.
func (c *clock) Run(ctx context.Context) error {
	// The timer never expires: the kernel cancels it when the clock is set (timerfd_create(2)).
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot watch the clock: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timer")
	defer timer.Close()
	never := unix.ItimerSpec{Value: unix.Timespec{Sec: 1 << 33}}
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil); err != nil {
		return fmt.Errorf("cannot watch the clock: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = timer.SetReadDeadline(time.Unix(1, 0)) })()
	c.SetReady()
	for {
		if by := c.step(); by != 0 {
			c.log.Warn("the machine's clock was set, starting again", "by", by.Round(time.Second))
			return errClockSet
		}
		if _, err := timer.Read(make([]byte, 8)); ctx.Err() != nil {
			return nil
		} else if !errors.Is(err, unix.ECANCELED) {
			return fmt.Errorf("cannot watch the clock: %w", err)
		}
	}
}

// wallClock returns how far the wall clock is ahead of the time since the machine booted.
func wallClock() time.Duration {
	var wall, boot unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &wall) // these clocks always exist
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
	return time.Duration(wall.Nano() - boot.Nano())
}
