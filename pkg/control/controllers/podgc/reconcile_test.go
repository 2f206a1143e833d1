package podgc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// bench is a reconciler with an in-memory API. It records the writes in order.
type bench struct {
	*reconciler
	t       *testing.T
	client  client.WithWatch
	now     time.Time
	written []string
	fail    error // error for the next Delete
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	b := &bench{t: t, now: now}
	b.client = fake.NewClientBuilder().
		WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
				opts ...client.SubResourcePatchOption) error {
				b.written = append(b.written, sub+" "+o.GetName())
				return c.SubResource(sub).Patch(ctx, o, patch, opts...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				var d client.DeleteOptions
				d.ApplyOptions(opts)
				require.Equal(t, o.GetUID(), *d.Preconditions.UID, "it deletes this pod alone")
				b.written = append(b.written, fmt.Sprintf("delete %s within %d", o.GetName(), *d.GracePeriodSeconds))
				if b.fail != nil {
					return b.fail
				}
				return c.Delete(ctx, o)
			},
		}).Build()
	b.reconciler = &reconciler{
		engine.Env{Client: b.client, Cache: b.client, Now: func() time.Time { return b.now }},
		b.list,
		&missing{gone: map[string]time.Time{}},
	}
	return b
}

func (b *bench) list(ctx context.Context, out client.ObjectList, _, index, value string) error {
	var all corev1.PodList
	if err := b.client.List(ctx, &all); err != nil {
		return err
	}
	for _, p := range all.Items {
		if index == podstate.NodeIndex && p.Spec.NodeName == value ||
			index == "status.phase" && string(p.Status.Phase) == value {
			out.(*corev1.PodList).Items = append(out.(*corev1.PodList).Items, p)
		}
	}
	return nil
}

func (b *bench) run(r engine.Request) engine.Result {
	b.t.Helper()
	res, err := b.reconcile(b.t.Context(), r)
	require.NoError(b.t, err)
	return res
}

func onNode(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
}

// The pods of a missing node are deleted once it has been missing for the whole quarantine without interruption.
func TestMissingNode(t *testing.T) {
	req := engine.RequestFor("", "n")
	b := newBench(t, onNode("runs", "n", corev1.PodRunning), onNode("done", "n", corev1.PodSucceeded),
		onNode("other", "m", corev1.PodRunning))
	require.Equal(t, Quarantine, b.run(req).RequeueAfter)
	b.now = now.Add(30 * time.Second)
	require.Equal(t, 10*time.Second, b.run(req).RequeueAfter)
	require.Empty(t, b.written)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	require.NoError(t, b.client.Create(t.Context(), node))
	b.now = now.Add(time.Hour)
	require.Zero(t, b.run(req))
	require.Empty(t, b.written, "it is back")
	require.NoError(t,
		b.client.Delete(t.Context(), node, client.Preconditions{UID: &node.UID}, client.GracePeriodSeconds(0)))
	b.written = nil
	require.Equal(t, Quarantine, b.run(req).RequeueAfter, "and missing anew")

	var last corev1.Pod
	require.NoError(t, b.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "runs"}, &last))
	w, err := b.client.Watch(t.Context(), &corev1.PodList{})
	require.NoError(t, err)
	b.now = b.now.Add(Quarantine)
	require.Zero(t, b.run(req))
	require.ElementsMatch(t, []string{"status runs", "delete runs within 0", "delete done within 0"}, b.written)
	require.Less(t, indexOf(b.written, "status runs"), indexOf(b.written, "delete runs within 0"))
	for e := range w.ResultChan() {
		if p := e.Object.(*corev1.Pod); p.Name == "runs" {
			require.Equal(t, corev1.PodFailed, p.Status.Phase)
			require.Equal(t, corev1.DisruptionTarget, p.Status.Conditions[0].Type)
			require.Equal(t, "DeletionByPodGC", p.Status.Conditions[0].Reason)
			break
		}
	}
	w.Stop()
	var left corev1.PodList
	require.NoError(t, b.client.List(t.Context(), &left))
	require.Len(t, left.Items, 1)
	require.Equal(t, "other", left.Items[0].Name)
}

func indexOf(list []string, s string) int {
	for i := range list {
		if list[i] == s {
			return i
		}
	}
	return -1
}

// Only a pod that was deleted before it was bound is removed.
func TestUnscheduled(t *testing.T) {
	deleted := func(name, node string) *corev1.Pod {
		p := onNode(name, node, corev1.PodPending)
		p.Finalizers, p.DeletionTimestamp = []string{"test/hold"}, &metav1.Time{Time: now}
		return p
	}
	b := newBench(t, deleted("unscheduled", ""), deleted("bound", "n"), onNode("pending", "", corev1.PodPending))
	for _, name := range []string{"unscheduled", "bound", "pending", "absent"} {
		require.Zero(t, b.run(engine.RequestFor("default", name)))
	}
	require.Equal(t, []string{"delete unscheduled within 0"}, b.written, "its status is left alone")
}

// A pod that replaced the one to delete under its name is not deleted. A failed deletion is retried.
func TestDeletionFails(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for _, tt := range []struct {
		err   error
		retry bool
	}{
		{apierrors.NewConflict(resource, "p", nil), false},
		{apierrors.NewNotFound(resource, "p"), false},
		{apierrors.NewServiceUnavailable("no quorum"), true},
	} {
		p := onNode("p", "", corev1.PodPending)
		p.Finalizers, p.DeletionTimestamp = []string{"test/hold"}, &metav1.Time{Time: now}
		b := newBench(t, p)
		b.fail = tt.err
		_, err := b.reconcile(t.Context(), engine.RequestFor("default", "p"))
		require.Equal(t, tt.retry, err != nil, tt.err)
	}
}

// Terminated pods are deleted only beyond the threshold, without a status write.
func TestTerminatedPods(t *testing.T) {
	var pods []client.Object
	for i := range TerminatedThreshold + 2 {
		p := onNode(fmt.Sprintf("p%05d", i), "n", []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}[i%2])
		p.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(i) * time.Second))
		pods = append(pods, p)
	}
	b := newBench(t, append(pods, onNode("running", "n", corev1.PodRunning))...)
	require.Zero(t, b.run(terminated))
	require.Equal(t, []string{"delete p00000 within 0", "delete p00001 within 0"}, b.written)
	require.Zero(t, b.run(terminated))
	require.Len(t, b.written, 2, "what is left is retained")
}
