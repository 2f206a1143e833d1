package workers

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/system"
)

// TestSubjectsOfANamespace checks that a worker gets no subject that the server's options do not allow, and keeps one
// that they allowed before.
func TestSubjectsOfANamespace(t *testing.T) {
	worker := func(source, sink string) *workers.Worker {
		w := &workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w"}}
		w.Spec.Image = "i"
		w.Spec.Delivery.RepliesSubject = sink
		if source != "" {
			w.Spec.Triggers = []workers.WorkerTrigger{{NATS: &workers.NATSTrigger{Subject: source}}}
		}
		workers.Default(w)
		return w
	}
	m := &messaging{}
	foreign := worker("other.>", "")
	require.Empty(t, m.validate(foreign), "no server runs in this process")
	option := []string{"{namespace}.>", "done"}
	m.host.Store(&system.Server{NATSSubjects: option})
	require.ErrorContains(t, m.validate(worker("ns.x", "")).ToAggregate(), "no option nats-context")
	m.host.Store(&system.Server{NATSSubjects: option, NATSContext: "file"})
	require.Empty(t, m.validate(worker("ns.>", "done")))
	require.ErrorContains(t, m.validate(foreign).ToAggregate(), "spec.triggers[0].nats.subject: Forbidden: "+
		"workers of namespace ns may use ns.>, done: the server's option nats-subjects allows further subjects")
	require.ErrorContains(t, m.validate(worker("", "other.x")).ToAggregate(), "spec.delivery.repliesSubject: Forbidden")
	require.Empty(t, m.validateUpdate(foreign, foreign))
	require.NotEmpty(t, m.validateUpdate(worker("other.x", ""), foreign))
	require.Empty(t, m.validate(worker("", "")))
}
