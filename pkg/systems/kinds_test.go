package systems

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/api/kinds/kindtest"
	cluster "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/kind"
)

var kinds = sync.OnceValue(func() *kind.Table { return builtin.Table(All().Extensions()...) })

func task() *tasks.Task {
	return &tasks.Task{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"}, Spec: tasks.TaskSpec{Image: "hello"}}
}

func TestOwnSplitsSpecAndStatus(t *testing.T) {
	r := kinds().ByGVK(tasks.GroupVersion.WithKind("Task"))
	sent := task()
	sent.Status.Phase = tasks.TaskCompleted
	out, err := kindtest.Create(r, sent)
	require.NoError(t, err)
	made := out.(*tasks.Task)
	require.Equal(t, tasks.TaskPending, made.Status.Phase, "a status sent with a create is dropped")
	require.Equal(t, int64(1), made.Generation)
	require.NotNil(t, made.Status.CreatedAt)
	made.ResourceVersion = "5"

	status := made.DeepCopy()
	status.Status.Phase, status.Spec.Image, status.Labels = tasks.TaskRunning, "other", map[string]string{"a": "b"}
	require.NoError(t, rest.BeforeUpdate(r.Status, kindtest.Context(r, "status"), status, made))
	require.Equal(t, tasks.TaskRunning, status.Status.Phase)
	require.Equal(t, "hello", status.Spec.Image)
	require.Empty(t, status.Labels)
	require.Equal(t, int64(1), status.Generation)

	seconds := int64(9)
	spec := status.DeepCopy()
	spec.Spec.ScheduleTimeoutSeconds, spec.Status.Phase = &seconds, tasks.TaskFailed
	require.NoError(t, rest.BeforeUpdate(r.Strategy, kindtest.Context(r, ""), spec, status))
	require.Equal(t, int64(2), spec.Generation)
	require.Equal(t, tasks.TaskRunning, spec.Status.Phase)

	label := spec.DeepCopy()
	label.Labels = map[string]string{"a": "b"}
	require.NoError(t, rest.BeforeUpdate(r.Strategy, kindtest.Context(r, ""), label, spec))
	require.Equal(t, int64(2), label.Generation, "metadata does not count")
}

func TestInvalidObjectsNameTheField(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "a", Namespace: "ns"}
	upper := metav1.ObjectMeta{Name: "A_", Namespace: "ns"}
	for name, c := range map[string]struct {
		obj   client.Object
		field string
	}{
		"pod without containers": {&corev1.Pod{ObjectMeta: meta}, "spec.containers"},
		"pod name": {
			&corev1.Pod{ObjectMeta: upper, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
			"metadata.name",
		},
		"service port": {
			&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 70000}}}},
			"spec.ports[0].port",
		},
		"config map key":     {&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a/b": ""}}, "data[a/b]"},
		"task without image": {&tasks.Task{ObjectMeta: meta}, "spec.image"},
		"task volume": {
			&tasks.Task{
				ObjectMeta: meta,
				Spec: tasks.TaskSpec{
					Image: "i",
					Volumes: []tasks.TaskVolume{
						{
							MountPath: "/a",
							Secret:    &corev1.SecretVolumeSource{SecretName: "s", Items: []corev1.KeyToPath{{Key: "k", Path: "../x"}}},
						},
					},
				},
			},
			"spec.volumes[0].secret.items[0].path",
		},
		"task mounts": {
			&tasks.Task{
				ObjectMeta: meta,
				Spec: tasks.TaskSpec{
					Image: "i",
					Volumes: []tasks.TaskVolume{
						{MountPath: "/a", Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
						{MountPath: "/a", Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
					},
				},
			},
			"spec.volumes[1].mountPath",
		},
		"task env": {
			&tasks.Task{
				ObjectMeta: meta,
				Spec: tasks.TaskSpec{
					Image: "i",
					Env: []corev1.EnvVar{
						{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "x"}}},
					},
				},
			},
			"spec.env[0].valueFrom.fieldRef.fieldPath",
		},
		"task toleration": {
			&tasks.Task{
				ObjectMeta: meta, Spec: tasks.TaskSpec{Image: "i", Tolerations: []corev1.Toleration{{Key: "a", Operator: "Near"}}},
			},
			"spec.tolerations[0].operator",
		},
		"task port": {
			&tasks.Task{
				ObjectMeta: meta,
				Spec:       tasks.TaskSpec{Image: "i", Ports: []tasks.TaskPort{{HostPort: 80, ContainerPort: 80, Protocol: "X"}}},
			},
			"spec.ports[0].protocol",
		},
		"array of a million": {
			&tasks.Task{ObjectMeta: meta, Spec: tasks.TaskSpec{Image: "i", Array: &tasks.TaskArray{Size: 1_000_000}}},
			"spec.array.size",
		},
		"task name": {&tasks.Task{ObjectMeta: upper, Spec: tasks.TaskSpec{Image: "i"}}, "metadata.name"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rowOf(c.obj)
			_, err := kindtest.Create(r, c.obj)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			causes := err.(apierrors.APIStatus).Status().Details.Causes
			var at []string
			for _, cause := range causes {
				at = append(at, cause.Field)
			}
			require.Contains(t, at, c.field)
		})
	}
}

// cells returns what kubectl get shows of an object.
func cells(t *testing.T, r *kind.Resource, o client.Object) []any {
	t.Helper()
	table, err := r.Table.ConvertToTable(t.Context(), o, nil)
	require.NoError(t, err)
	require.Len(t, table.Rows[0].Cells, len(table.ColumnDefinitions))
	return table.Rows[0].Cells
}

func TestColumns(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}
	w := &workers.Worker{
		ObjectMeta: meta,
		Spec:       workers.WorkerSpec{Function: workers.FunctionEcho, Scale: &workers.WorkerScale{Max: 3}},
		Status:     workers.WorkerStatus{DesiredReplicas: 2, ReadyReplicas: 1, Depth: 7},
	}
	workers.Default(w)
	r := &kontrol.Resource{ObjectMeta: meta}
	r.Generation, r.Spec.Template.Raw = 1, []byte(`{"kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`)
	size := int64(5)
	for _, c := range []struct {
		o    client.Object
		want []any
	}{
		{&tasks.Task{ObjectMeta: meta}, []any{"a", "", "", "", int64(0), "", "60m", "", "", ""}},
		{&tasks.TaskSchedule{ObjectMeta: meta}, []any{"a", "<none>", "<none>", false, 0, "<none>", "<none>", "60m", ""}},
		{w, []any{"a", "1/2", int64(7), int64(0), int64(0), "AtMostOnce", "60m", "Poll", "function echo", "0-3"}},
		{&kontrol.Cluster{ObjectMeta: meta}, []any{"a", "Unknown", "", "never", "60m", "", ""}},
		// What was not observed yet is not in sync.
		{r, []any{"a", "ConfigMap/ns/m", "0/0", "OutOfSync", "1", "", "60m", "0", "1", ""}},
		{&kontrol.Bundle{ObjectMeta: meta}, []any{"a", "0", "0/0", "", "0/0", "60m", "inline", "", ""}},
		{&kontrol.AppliedState{ObjectMeta: meta}, []any{"a", "/", "", "0", "0", "", "never", "0", ""}},
		{&kontrol.CurrentState{ObjectMeta: meta}, []any{"a", "/", "", "0", "0", "", "0", "never", "", "", ""}},
		{&buildbarn.BuildbarnStorage{ObjectMeta: meta}, []any{"a", "", int64(0), int64(0), "60m", "", ""}},
		{&buildbarn.Buildbarn{ObjectMeta: meta}, []any{"a", "", int64(0), int64(0), "60m"}},
		{&snapshots.VolumeSnapshot{ObjectMeta: meta}, []any{"a", "", "", "", "", "", "", "", "60m"}},
		{
			&snapshots.VolumeSnapshotContent{
				ObjectMeta: meta, Status: &snapshots.VolumeSnapshotContentStatus{RestoreSize: &size, ReadyToUse: new(true)},
			}, []any{"a", "true", "5", "", "", "", "", "", "60m"},
		},
		{&snapshots.VolumeGroupSnapshot{ObjectMeta: meta}, []any{"a", "", "", "", "", "60m"}},
	} {
		require.Equal(t, c.want, cells(t, rowOf(c.o), c.o), "%T", c.o)
	}
}

// TestRulesNameResources checks that the names of resources, which are derived from kinds, exist.
func TestRulesNameResources(t *testing.T) {
	known := map[schema.GroupResource]bool{{Resource: "events"}: true, {Group: "*", Resource: "*"}: true}
	for _, r := range kinds().Served() {
		known[r.GR()] = true
	}
	for _, a := range All().Accounts() {
		require.Contains(t, a.Name, "-controller")
		for _, r := range append(a.Rules, a.Further...) {
			for _, resource := range r.Resources {
				name, _, _ := strings.Cut(resource, "/")
				require.True(t, known[schema.GroupResource{Group: r.APIGroups[0], Resource: name}], "%s: %v", a.Name, r)
			}
		}
	}
}

func rowOf(o client.Object) *kind.Resource {
	for _, r := range kinds().All() {
		if kinds, _, err := r.Strategy.ObjectKinds(o); err == nil {
			for _, k := range kinds {
				if k == r.GroupVersionKind {
					return r
				}
			}
		}
	}
	return nil
}

// TestIdempotencyKeyNamesTheTask checks that a task's name follows from its idempotency key, so that at most one task
// has the key.
func TestIdempotencyKeyNamesTheTask(t *testing.T) {
	r := kinds().ByGVK(tasks.GroupVersion.WithKind("Task"))
	made := task()
	made.Name, made.Spec.IdempotencyKey = "", "order 7"
	out, err := kindtest.Create(r, made)
	require.NoError(t, err)
	require.Equal(t, tasks.NameForKey("order 7"), out.GetName())
	other := task()
	other.Spec.IdempotencyKey = "order 7"
	_, err = kindtest.Create(r, other)
	require.True(t, apierrors.IsInvalid(err))
	require.ErrorContains(t, err, tasks.NameForKey("order 7"))
}

func TestSelector(t *testing.T) {
	b := kinds()
	pods, newer := b.ByGVK(corev1.SchemeGroupVersion.WithKind("Pod")), b.ByGVK(schema.GroupVersionKind{
		Group: "events.k8s.io", Version: "v1", Kind: "Event",
	})
	s, err := pods.Selector(fields.ParseSelectorOrDie("spec.host=n1,status.phase!=Failed"))
	require.NoError(t, err)
	require.Equal(t, "spec.nodeName=n1,status.phase!=Failed", s.String())
	_, err = pods.Selector(fields.ParseSelectorOrDie("spec.image=x"))
	require.EqualError(t, err, "field label not supported: spec.image")
	s, err = newer.Selector(fields.ParseSelectorOrDie("regarding.name=a,reportingController=c"))
	require.NoError(t, err)
	require.Equal(t, "involvedObject.name=a,reportingComponent=c", s.String())
}

func TestEventsLiveAnHour(t *testing.T) {
	for _, r := range kinds().All() {
		require.Equal(t, r.Kind == "Event", r.Expires)
	}
}

func TestComputedKindsAreNotStored(t *testing.T) {
	for _, r := range kinds().Served() {
		require.Equal(t, !r.Computed, slices.Contains(kinds().All(), r), "%s", r.GVR())
		require.Equal(t, !r.Computed, kinds().ByGVK(r.GroupVersionKind) == r, "%s", r.GVR())
	}
	require.Greater(t, len(kinds().Served()), len(kinds().All()))
}

func BenchmarkPodToInternalAndBack(b *testing.B) {
	r := kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod"))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	b.ReportAllocs()
	for b.Loop() {
		in, err := r.Internal(p)
		if err != nil {
			b.Fatal(err)
		}
		if _, err = r.External(in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPodFields(b *testing.B) {
	r := kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod"))
	p := &corev1.Pod{}
	b.ReportAllocs()
	for b.Loop() {
		r.Fields(p)
	}
}

func BenchmarkPodCreate(b *testing.B) {
	r := kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Pod"))
	b.ReportAllocs()
	for b.Loop() {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		if _, err := kindtest.Create(r, p); err != nil {
			b.Fatal(err)
		}
	}
}

func TestSchemeKnowsEveryKind(t *testing.T) {
	scheme := cluster.Scheme()
	for _, r := range kinds().All() {
		gvk, err := apiutil.GVKForObject(r.New(), scheme)
		require.NoError(t, err, r.Kind)
		require.Equal(t, r.GroupVersionKind, gvk)
		require.True(t, scheme.Recognizes(gvk.GroupVersion().WithKind(r.Kind+"List")))
	}
}
