// Package window evaluates sync windows.
//
// It contains only pure functions. Its invariant: a window that cannot be evaluated allows nothing.
package window

import (
	"time"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// State is the result of a list of windows.
type State struct {
	Open bool
	// Until is when to evaluate the windows again; zero if never. Open does not change from false before that.
	Until time.Time
	// Why is the reason if Open is false.
	Why string
}

// Of returns the state of windows at a time. It is open if no window denies, and one allows or no window is of kind
// Allow.
func Of(list []kontrol.SyncWindow, now time.Time) State {
	s := State{Open: true, Why: "no sync window allows changes now"}
	allowing, allowed := false, false
	var opens time.Time // the next begin of a window of kind Allow
	for i := range list {
		w := &list[i]
		active, until := of(w, now)
		switch {
		case w.Kind == kontrol.WindowDeny && active:
			if s.Open || until.After(s.Until) {
				s = State{Until: until, Why: "the window " + w.String() + " denies changes"}
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

// of reports whether a window is active, and when that may change.
func of(w *kontrol.SyncWindow, now time.Time) (active bool, until time.Time) {
	begins, err := w.Begins()
	if err != nil { // cannot happen: it was validated
		return w.Kind == kontrol.WindowDeny, time.Time{}
	}
	start := begins.Next(now.Add(-w.Duration.Duration))
	if start.IsZero() || start.After(now) {
		return false, start
	}
	return true, start.Add(w.Duration.Duration)
}

// sooner returns the earlier of two times; zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Wait returns the time until s.Until, at least a millisecond; 0 if that is never.
func (s State) Wait(now time.Time) time.Duration {
	if s.Until.IsZero() {
		return 0
	}
	return max(s.Until.Sub(now), time.Millisecond)
}

// Message returns why the state is closed and until when.
func (s State) Message() string {
	if s.Until.IsZero() {
		return s.Why
	}
	return s.Why + ": not before " + s.Until.UTC().Format(time.RFC3339)
}
