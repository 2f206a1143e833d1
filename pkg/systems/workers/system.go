// Package workers is the system of message workers: programs that get messages from a queue and are scaled by its
// length. This package is the API server's part, which accepts messages and sends them to the pods' nodes. Its
// invariant: a sender learns that a message is accepted only after a node has it on disk.
package workers

import (
	"embed"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/systems/workers/commands"
	"github.com/coracle-dev/coracle/pkg/systems/workers/controller"
)

//go:embed manual
var pages embed.FS

// New returns the system.
func New(h system.Host) system.System {
	to, rows := &messaging{host: h}, kinds()
	return system.System{
		Name: "workers",
		Extension: own.Extension{
			Kinds: rows,
			Subresources: map[schema.GroupVersionKind][]kind.Subresource{
				podKind:     {subresource("PodProxyOptions", to.pod)},
				serviceKind: {subresource("ServiceProxyOptions", to.service)},
			},
			Roles: roles(),
		},
		Node:        to.node,
		Commands:    commands.New(own.Resources(rows)),
		Manual:      pages,
		Reconcilers: func(system.Controllers) []*engine.Reconciler { return []*engine.Reconciler{controller.New()} },
	}
}

func kinds() []own.Kind {
	row := own.Row(own.Definition[*workers.Worker]{
		Kind: workerKind, Plural: "workers", Categories: []string{"coracle"},
		New:     func() *workers.Worker { return &workers.Worker{} },
		NewList: func() client.ObjectList { return &workers.WorkerList{} },
		Default: workers.Default, Validate: workers.Validate, ValidateUpdate: workers.ValidateUpdate,
		Columns: workers.Columns, Cells: workers.Cells, Source: workers.Source,
	}, func(w *workers.Worker) *workers.WorkerStatus { return &w.Status })
	// A worker with spec.scale rejects a fixed number of replicas.
	row.Subresources = append(row.Subresources, own.Scale(func(w *workers.Worker) (**int32, int32, *metav1.LabelSelector) {
		return &w.Spec.Replicas, w.Status.Replicas, &metav1.LabelSelector{
			MatchLabels: map[string]string{workers.LabelWorker: w.Name},
		}
	}))
	return []own.Kind{{Row: row, Rights: workers.Rights}}
}

func subresource(options string, connect kind.Connector) kind.Subresource {
	return kind.Subresource{
		Name: "message", GroupVersionKind: corev1.SchemeGroupVersion.WithKind(options), Verbs: []string{"create"},
		Connect: connect, Methods: []string{http.MethodPost}, Undocumented: true, MaxBody: workers.MaxPayload, Relays: true,
	}
}

// roles allow nodes to forward the messages of ended pods to other pods of the same worker.
func roles() []client.Object {
	role := &rbacv1.ClusterRole{ObjectMeta: own.RoleMeta("system:coracle:node-messages"), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services/message"}, Verbs: []string{"create"}},
	}}
	return []client.Object{
		role,
		own.RoleBinding(role, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.NodesGroup}),
	}
}
