package workers

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/dispatch"
)

// validate validates a worker, and whether the server's options allow its NATS subjects.
func (m *messaging) validate(w *workers.Worker) field.ErrorList {
	return append(validate(w), m.validateSubjects(w, nil)...)
}

// validateUpdate lets a worker keep the subjects that it has: the options may have changed.
func (m *messaging) validateUpdate(w, old *workers.Worker) field.ErrorList {
	return append(validateUpdate(w, old), m.validateSubjects(w, workers.SubjectsOf(&old.Spec))...)
}

func (m *messaging) validateSubjects(w *workers.Worker, had []workers.WorkerSubject) (errs field.ErrorList) {
	host := m.host.Load()
	if host == nil { // no server runs in this process
		return nil
	}
	for _, subject := range workers.SubjectsOf(&w.Spec) {
		why := workers.AllowSubject(host.NATSSubjects, w.Namespace, subject.Name)
		if host.NATSContext == "" {
			why = "this server has no option nats-context, which names the NATS servers"
		}
		same := func(o workers.WorkerSubject) bool { return o.Name == subject.Name }
		if why != "" && workers.CheckSubject(subject.Name) == "" && !slices.ContainsFunc(had, same) {
			errs = append(errs, field.Forbidden(subject.Path, why))
		}
	}
	return errs
}

// receive queues the messages of NATS subjects.
func (q *queues) receive(ctx context.Context, worker types.NamespacedName, list []dispatch.Message) []error {
	for i := range list {
		m := &list[i]
		m.Trace = validTrace(m.Trace)
		if checkText("id", m.DedupID, workers.MaxDedupID) != nil {
			m.DedupID = ""
		}
		if checkText("key", m.OrderKey, workers.MaxOrderKey) != nil {
			m.OrderKey = ""
		}
	}
	_, errs := q.postAll(ctx, worker, list)
	return errs
}
