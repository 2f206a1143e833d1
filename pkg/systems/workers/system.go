// Package workers is the system of message workers: programs that get messages from a queue and are scaled by its
// length. This package is the API server's part, which accepts messages into queues. Its invariant: a sender learns
// that a message is accepted only after the queue has it, on disk if the worker's promise is AtLeastOnce.
//
// One server keeps a worker's queue (package queue), because a queue on each node leaves a backlog where it was sent:
// pods that autoscaling adds got none of it. A broker of several servers was left out: servers with stores of their own
// do not form one cluster yet. The server that keeps the queue is in the worker's status.
package workers

import (
	"embed"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/node/ingress"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/systems/workers/commands"
	"github.com/coracle-dev/coracle/pkg/systems/workers/controller"
)

//go:embed manual
var pages embed.FS

// New returns the system.
func New() system.System {
	to := &messaging{receiving: newReceiving()}
	rows := kinds(to)
	return system.System{
		Name: "workers",
		Extension: own.Extension{
			Kinds: rows,
			Subresources: map[schema.GroupVersionKind][]kind.Subresource{
				podKind:     {subresource("PodProxyOptions", to.pod)},
				serviceKind: {subresource("ServiceProxyOptions", to.service)},
			},
		},
		Node:        to.node,
		Serve:       to.serve,
		Backends:    []ingress.Resource{{GroupKind: workerKind.GroupKind(), Handler: to.caller}},
		Commands:    commands.New(own.Resources(rows)),
		Manual:      pages,
		Reconcilers: func(system.Controllers) []*engine.Reconciler { return []*engine.Reconciler{controller.New()} },
	}
}

func kinds(to *messaging) []own.Kind {
	k := own.Declare(own.Definition[*workers.Worker]{
		Kind: workerKind, Plural: "workers", Categories: []string{"coracle"},
		New:     func() *workers.Worker { return &workers.Worker{} },
		NewList: func() client.ObjectList { return &workers.WorkerList{} },
		Default: workers.Default, Validate: to.validate, ValidateUpdate: to.validateUpdate,
		Columns: columns(), Source: workers.Source, View: true, Edit: true,
	}, func(w *workers.Worker) *workers.WorkerStatus { return &w.Status })
	// A worker with spec.scale rejects a fixed number of replicas.
	scale := own.Scale(func(w *workers.Worker) (**int32, int32, *metav1.LabelSelector) {
		return &w.Spec.Replicas, w.Status.Replicas, &metav1.LabelSelector{
			MatchLabels: map[string]string{workers.LabelWorker: w.Name},
		}
	})
	k.Row.Subresources = append(k.Row.Subresources, scale, kind.Subresource{
		Name: "queue", GroupVersionKind: workerKind, Verbs: []string{"create", "delete", "get"}, Connect: to.manage,
		Methods: []string{http.MethodGet, http.MethodPost, http.MethodDelete}, MaxBody: 1 << 10,
	})
	return []own.Kind{k}
}

func columns() []own.Column[*workers.Worker] {
	type worker = *workers.Worker
	return []own.Column[worker]{
		{Name: "Ready", About: "The pods that are ready, of those asked for", Cell: func(w worker) any {
			return fmt.Sprintf("%d/%d", w.Status.ReadyReplicas, w.Status.DesiredReplicas)
		}},
		{
			Name: "Depth", About: "How many messages wait", Type: "integer",
			Cell: func(w worker) any { return int64(w.Status.Depth) },
		},
		{
			Name: "In Flight", About: "How many messages are handled", Type: "integer",
			Cell: func(w worker) any { return int64(w.Status.InFlight) },
		},
		{
			Name: "Dead", About: "How many failed messages are kept", Type: "integer",
			Cell: func(w worker) any { return int64(w.Status.Dead) },
		},
		{Name: "Delivery", About: "AtMostOnce or AtLeastOnce", Cell: func(w worker) any { return w.Spec.Delivery.Promise }},
		own.AgeColumn[worker](),
		{Name: "Mode", About: "Poll or Push", Wide: true, Cell: func(w worker) any { return w.Spec.Mode }},
		{Name: "Program", About: "The image, or the built-in function", Wide: true, Cell: func(w worker) any {
			if w.Spec.Function != "" {
				return "function " + string(w.Spec.Function)
			}
			return w.Spec.Image
		}},
		{Name: "Scale", About: "The range of replicas", Wide: true, Cell: func(w worker) any {
			if r := w.Spec.Scale; r != nil {
				return fmt.Sprintf("%d-%d", r.Min, r.Max)
			}
			return ""
		}},
	}
}

func subresource(options string, connect kind.Connector) kind.Subresource {
	return kind.Subresource{
		Name: "message", GroupVersionKind: corev1.SchemeGroupVersion.WithKind(options), Verbs: []string{"create"},
		Connect: connect, Methods: []string{http.MethodPost}, Undocumented: true, MaxBody: workers.MaxPayload, Relays: true,
	}
}
