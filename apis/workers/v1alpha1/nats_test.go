package v1alpha1

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestAllowSubject(t *testing.T) {
	option := []string{"{namespace}.>", "shared.*.in", "team-{namespace}"}
	for subject, want := range map[string]string{
		"a.b": "", "a.>": "", "a.*.b.>": "", "shared.x.in": "", "shared.*.in": "", "team-a": "",
		"a": "may use a.>, shared.*.in, team-a", "b.x": "option nats-subjects", "shared.>": "option nats-subjects",
		"shared.x.y.in": "option nats-subjects", "team-b": "option nats-subjects",
		">": "begin with a wildcard", "*.x": "begin with a wildcard", "$JS.API.x": "internal", "_INBOX.x": "internal",
		"coracle.uid.m.1": "internal", "": "bytes", "a..b": "tokens", "a.b>": "tokens", "a.>.b": "tokens", "a. b": "tokens",
		"a.ü": "tokens", strings.Repeat("a", 257): "bytes",
	} {
		if why := AllowSubject(option, "a", subject); want == "" {
			require.Empty(t, why, subject)
		} else {
			require.Contains(t, why, want, subject)
		}
	}
	for _, subject := range []string{"coracle.x", "coracle.>"} {
		require.NotEmpty(t, AllowSubject(option, "coracle", subject), "the streams of queues have these subjects")
	}
}

// TestMatchSubject compares the comparison of patterns with the subjects that they match.
func TestMatchSubject(t *testing.T) {
	var all []string
	for _, a := range []string{"a", "b", "c"} {
		all = append(all, a)
		for _, b := range []string{"a", "b", "c"} {
			all = append(all, a+"."+b, a+"."+b+".a", a+"."+b+".b", a+"."+b+".c")
		}
	}
	matches := func(pattern, subject string) bool { return MatchSubject(pattern, subject, false) }
	rapid.Check(t, func(t *rapid.T) {
		pattern := func(name string) string {
			tokens := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*"}), 1, 3).Draw(t, name)
			if rapid.Bool().Draw(t, name+" rest") {
				tokens[len(tokens)-1] = ">"
			}
			return strings.Join(tokens, ".")
		}
		p, o := pattern("pattern"), pattern("other")
		both, only := false, false
		for _, s := range all {
			both = both || matches(p, s) && matches(o, s)
			only = only || matches(o, s) && !matches(p, s)
		}
		require.Equal(t, both, MatchSubject(p, o, true), "%s and %s overlap", p, o)
		if MatchSubject(p, o, false) {
			require.False(t, only, "%s has all of %s", p, o)
		}
	})
}

func TestValidateSubjects(t *testing.T) {
	trigger := func(subject, stream string) []WorkerTrigger {
		return []WorkerTrigger{{NATS: &NATSTrigger{Subject: subject, Stream: stream}}}
	}
	late := int64(1)
	for name, c := range map[string]struct {
		spec WorkerSpec
		want string
	}{
		"trigger": {WorkerSpec{Triggers: trigger("a.>", "ORDERS")}, ""},
		"sink":    {WorkerSpec{Delivery: WorkerDelivery{RepliesSubject: "a.b"}}, ""},
		"neither": {WorkerSpec{Triggers: []WorkerTrigger{{}}}, "spec.triggers[0].schedule"},
		"both": {
			WorkerSpec{Triggers: []WorkerTrigger{{Schedule: "@daily", NATS: &NATSTrigger{Subject: "a"}}}}, "spec.triggers[0]",
		},
		"late": {
			WorkerSpec{Triggers: []WorkerTrigger{{StartingDeadlineSeconds: &late, NATS: &NATSTrigger{Subject: "a"}}}},
			"spec.triggers[0]",
		},
		"internal subject": {WorkerSpec{Triggers: trigger("$SYS.>", "")}, "spec.triggers[0].nats.subject"},
		"queue's stream":   {WorkerSpec{Triggers: trigger("a", "coracle-uid")}, "spec.triggers[0].nats.stream"},
		"stream's name":    {WorkerSpec{Triggers: trigger("a", "a.b")}, "spec.triggers[0].nats.stream"},
		"sinks": {
			WorkerSpec{Delivery: WorkerDelivery{Replies: "b", RepliesSubject: "a.b"}}, "spec.delivery.repliesSubject",
		},
		"sink's wildcard": {WorkerSpec{Delivery: WorkerDelivery{RepliesSubject: "a.*"}}, "spec.delivery.repliesSubject"},
		"internal sink":   {WorkerSpec{Delivery: WorkerDelivery{RepliesSubject: "$JS.x"}}, "spec.delivery.repliesSubject"},
		"own replies": {
			WorkerSpec{Triggers: trigger("a.>", ""), Delivery: WorkerDelivery{RepliesSubject: "a.b"}},
			"spec.triggers[0].nats.subject",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Image = "i"
			w := &Worker{ObjectMeta: metav1.ObjectMeta{Name: "w"}, Spec: c.spec}
			Default(w)
			errs := Validate(w)
			if c.want == "" {
				require.Empty(t, errs)
				return
			}
			require.Len(t, errs, 1)
			require.Equal(t, c.want, errs[0].Field)
		})
	}
}
