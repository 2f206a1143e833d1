package fit

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

func TestQueues(t *testing.T) {
	linux := protocol.Queue{Place: at, Prefix: "a/b", Platform: []protocol.Property{{Name: "OS", Value: "linux"}}}
	mac := protocol.Queue{Place: at, Prefix: "a/b", Platform: []protocol.Property{{Name: "OS", Value: "mac"}}}
	worker := &protocol.Facts{
		Queues:  []protocol.Queue{linux},
		Clients: []protocol.Client{{Place: protocol.Place{Field: "scheduler.address"}, Address: "scheduler:8983"}},
	}
	route := func(added, address string) *protocol.Facts {
		return &protocol.Facts{Routes: []protocol.Route{{Added: added, Address: address}}}
	}
	for _, test := range []struct {
		declared  []protocol.Queue
		frontends map[string]*protocol.Facts
		empty     bool
		want      string
	}{
		{nil, nil, false, ""}, // the scheduler creates a queue for any worker
		{[]protocol.Queue{mac, linux}, nil, true, ""},
		{
			[]protocol.Queue{mac},
			nil,
			false,
			"x.jsonnet:1: f: BuildbarnScheduler scheduler has no queue for instance names " +
				"that begin with a/b and platform OS=linux, only for instance names that begin with a/b and platform OS=mac",
		},
		{nil, nil, true, "it refuses their actions once they have been scaled to zero for a while"},
		{nil, map[string]*protocol.Facts{"f": route("", "scheduler:8982")}, false, ""},
		{nil, map[string]*protocol.Facts{"f": route("a", "scheduler:8982")}, false, ""},
		{nil, map[string]*protocol.Facts{"f": route("a/b/c", "scheduler.ns:8982")}, false, ""},
		{nil, map[string]*protocol.Facts{"f": route("x", "other:8982")}, false, ""}, // a route to another scheduler
		{nil, map[string]*protocol.Facts{"f": route("x", "scheduler:8982"), "g": nil}, false, ""},
		{nil, map[string]*protocol.Facts{"f": route("x", "scheduler:8982"), "g": route("a/b", "scheduler:8982")}, false, ""},
		{nil, map[string]*protocol.Facts{"f": route("a/bc", "scheduler:8982"), "g": route("x", "scheduler:8982")}, false,
			"no frontend in this namespace forwards actions for instance names that begin with a/b and platform OS=linux " +
				"to scheduler: their addInstanceNamePrefix is a/bc, x"},
	} {
		around := Around{
			Namespace: "ns", Component: "worker", Empty: test.empty, Frontends: test.frontends,
			Services: map[string]*corev1.Service{
				"scheduler": service("scheduler", "BuildbarnScheduler", "10.0.0.1", 8982, 8983),
			},
			Schedulers: map[string]*protocol.Facts{"scheduler": {Queues: test.declared}},
		}
		problem, warnings := Compare([]*protocol.Facts{worker, {}}, around)
		require.Empty(t, problem)
		if test.want == "" {
			require.Empty(t, warnings)
			continue
		}
		require.Len(t, warnings, 1)
		require.Contains(t, warnings[0], test.want)
	}
}
