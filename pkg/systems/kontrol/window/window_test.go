package window

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

func allow(schedule string, d time.Duration) kontrol.SyncWindow {
	return kontrol.SyncWindow{Kind: kontrol.WindowAllow, Schedule: schedule, Duration: metav1.Duration{Duration: d}}
}

func deny(schedule string, d time.Duration) kontrol.SyncWindow {
	w := allow(schedule, d)
	w.Kind = kontrol.WindowDeny
	return w
}

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestWindows(t *testing.T) {
	berlin := allow("0 22 * * *", 2*time.Hour)
	berlin.TimeZone = "Europe/Berlin"
	night := allow("0 22 * * 1-5", 4*time.Hour)
	for name, c := range map[string]struct {
		list  []kontrol.SyncWindow
		now   string
		open  bool
		until string
	}{
		"none":             {nil, "2026-11-22T12:00:00Z", true, ""},
		"before it opens":  {[]kontrol.SyncWindow{night}, "2026-11-23T21:59:59Z", false, "2026-11-23T22:00:00Z"},
		"as it opens":      {[]kontrol.SyncWindow{night}, "2026-11-23T22:00:00Z", true, "2026-11-24T02:00:00Z"},
		"after midnight":   {[]kontrol.SyncWindow{night}, "2026-11-24T01:59:59Z", true, "2026-11-24T02:00:00Z"},
		"as it ends":       {[]kontrol.SyncWindow{night}, "2026-11-24T02:00:00Z", false, "2026-11-24T22:00:00Z"},
		"over the weekend": {[]kontrol.SyncWindow{night}, "2026-11-22T12:00:00Z", false, "2026-11-23T22:00:00Z"},
		"one of two": {
			[]kontrol.SyncWindow{night, allow("0 12 * * *", time.Hour)},
			"2026-11-22T12:30:00Z",
			true,
			"2026-11-22T13:00:00Z",
		},
		"the nearer of two": {
			[]kontrol.SyncWindow{night, allow("0 12 * * *", time.Hour)},
			"2026-11-22T13:30:00Z",
			false,
			"2026-11-23T12:00:00Z",
		},
		"denied": {
			[]kontrol.SyncWindow{deny("0 12 * * *", time.Hour)}, "2026-11-22T12:30:00Z", false, "2026-11-22T13:00:00Z",
		},
		"not denied now": {
			[]kontrol.SyncWindow{deny("0 12 * * *", time.Hour)}, "2026-11-22T13:00:00Z", true, "2026-11-23T12:00:00Z",
		},
		"denied and allowed": {
			[]kontrol.SyncWindow{allow("0 0 * * *", 24*time.Hour), deny("0 12 * * *", time.Hour)},
			"2026-11-22T12:30:00Z",
			false,
			"2026-11-22T13:00:00Z",
		},
		"the longer denial": {
			[]kontrol.SyncWindow{deny("0 12 * * *", 3*time.Hour), deny("0 12 * * *", time.Hour)},
			"2026-11-22T12:30:00Z",
			false,
			"2026-11-22T15:00:00Z",
		},
		"a zone in winter": {[]kontrol.SyncWindow{berlin}, "2026-11-22T21:00:00Z", true, "2026-11-22T23:00:00Z"},
		"a zone in summer": {[]kontrol.SyncWindow{berlin}, "2026-07-22T20:00:00Z", true, "2026-07-22T22:00:00Z"},
		"what cannot be read, allowing": {
			[]kontrol.SyncWindow{allow("nonsense", time.Hour)}, "2026-11-22T12:00:00Z", false, "",
		},
		"what cannot be read, denying": {
			[]kontrol.SyncWindow{deny("nonsense", time.Hour)}, "2026-11-22T12:00:00Z", false, "",
		},
	} {
		s := Of(c.list, at(c.now))
		require.Equal(t, c.open, s.Open, name)
		until := ""
		if !s.Until.IsZero() {
			until = s.Until.UTC().Format(time.RFC3339)
		}
		require.Equal(t, c.until, until, name)
	}
}

// TestNothingChangesBeforeItIsLookedAt checks that the result is constant before Until.
func TestNothingChangesBeforeItIsLookedAt(t *testing.T) {
	schedules := []string{"0 22 * * *", "*/15 * * * *", "30 3 * * 0", "0 0 1 * *", "@hourly"}
	rapid.Check(t, func(t *rapid.T) {
		var list []kontrol.SyncWindow
		for range rapid.IntRange(1, 4).Draw(t, "windows") {
			list = append(list, kontrol.SyncWindow{
				Kind:     rapid.SampledFrom([]kontrol.WindowKind{kontrol.WindowAllow, kontrol.WindowDeny}).Draw(t, "kind"),
				Schedule: rapid.SampledFrom(schedules).Draw(t, "schedule"),
				Duration: metav1.Duration{Duration: time.Duration(rapid.IntRange(1, 48*60).Draw(t, "minutes")) * time.Minute},
				TimeZone: rapid.SampledFrom([]string{"", "America/New_York", "Asia/Kathmandu"}).Draw(t, "zone"),
			})
		}
		now := at("2026-10-20T00:00:00Z").Add(time.Duration(rapid.IntRange(0, 40*24*60).Draw(t, "at")) * time.Minute)
		s := Of(list, now)
		if s.Until.IsZero() {
			return
		}
		if !s.Until.After(now) {
			t.Fatalf("at %s it is looked at again at %s", now, s.Until)
		}
		for m := range 50 { // samples of the whole time up to a minute before Until
			then := now.Add(s.Until.Sub(now) * time.Duration(m) / 50)
			if Of(list, then).Open != s.Open {
				t.Fatalf("%v at %s, but not at %s, before %s", s.Open, now, then, s.Until)
			}
		}
	})
}
