// Package window says whether sync windows are open.
//
// It contains only pure functions. Its invariant: what cannot be evaluated is closed.
package window

import (
	"time"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// State says whether something may be applied.
type State struct {
	Open bool
	// Until is when to look again; zero for never. While it is closed, it does not open before.
	Until time.Time
	// Why says why it is closed.
	Why string
}

// Of returns the state of windows at a time: open if none denies it, and one allows it or none is of that kind.
func Of(list []kontrol.SyncWindow, now time.Time) State {
	s := State{Open: true, Why: "no window allows it now"}
	allowing, allowed := false, false
	var opens time.Time // the next that allows it
	for i := range list {
		w := &list[i]
		active, until := of(w, now)
		switch {
		case w.Kind == kontrol.WindowDeny && active:
			if s.Open || until.After(s.Until) {
				s = State{Until: until, Why: "the window " + w.String() + " denies it"}
			}
		case w.Kind == kontrol.WindowDeny:
			if s.Open {
				s.Until = sooner(s.Until, until)
			}
		case active:
			allowing, allowed = true, true
			if s.Open {
				s.Until = sooner(s.Until, until)
			}
		default:
			allowing, opens = true, sooner(opens, until)
		}
	}
	if s.Open && allowing && !allowed {
		return State{Until: opens, Why: s.Why}
	}
	return s
}

// of reports whether a window is open, and when that is to be looked at again: no later than when it changes.
func of(w *kontrol.SyncWindow, now time.Time) (active bool, until time.Time) {
	begins, err := w.Begins()
	if err != nil { // it was validated
		return w.Kind == kontrol.WindowDeny, time.Time{}
	}
	start := begins.Next(now.Add(-w.Duration.Duration))
	if start.IsZero() || start.After(now) {
		return false, start
	}
	return true, start.Add(w.Duration.Duration)
}

// sooner returns the earlier of two times; zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Wait returns how long until to look again; 0 for never.
func (s State) Wait(now time.Time) time.Duration {
	if s.Until.IsZero() {
		return 0
	}
	return max(s.Until.Sub(now), time.Millisecond)
}

// Message says why it is closed, and until when.
func (s State) Message() string {
	if s.Until.IsZero() {
		return s.Why
	}
	return s.Why + ": not before " + s.Until.UTC().Format(time.RFC3339)
}
