package registry

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/warning"
)

func TestCreate(t *testing.T) {
	h := build(t)
	cm := put(h, v1("ConfigMap", ""), configMap("a", "k", "v"))
	require.NotEmpty(t, cm.UID)
	require.NotEmpty(t, cm.ResourceVersion)
	require.False(t, cm.CreationTimestamp.IsZero())
	require.Equal(t, "ConfigMap", cm.Kind)

	for name, c := range map[string]struct {
		target Target
		obj    runtime.Object
		code   int32
		words  []string
	}{
		"taken name": {v1("ConfigMap", ""), configMap("a"), 409, []string{`configmaps "a" already exists`}},
		"no namespace": {
			at(corev1.SchemeGroupVersion.WithKind("ConfigMap"), "none", ""),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
			404,
			[]string{`namespaces "none" not found`},
		},
		"other namespace": {
			v1("ConfigMap", ""),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}},
			400,
			[]string{"the namespace of the provided object does not match the namespace sent on the request"},
		},
		"invalid name": {
			v1("ConfigMap", ""),
			configMap("A_b"),
			422,
			[]string{`ConfigMap "A_b" is invalid: metadata.name: Invalid value`},
		},
		"no name": {
			v1("ConfigMap", ""),
			configMap(""),
			422,
			[]string{"metadata.name: Required value: name or generateName is required"},
		},
		"resourceVersion": {
			v1("ConfigMap", ""),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", ResourceVersion: "5"}},
			400,
			[]string{"resourceVersion should not be set on objects to be created"},
		},
		"no containers": {
			v1("Pod", ""),
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
			422,
			[]string{"spec.containers: Required value"},
		},
		"wrong kind": {v1("Pod", ""), &metav1.Status{}, 400, []string{"is not a Pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Create(h.ctx, c.target, c.obj, metav1.CreateOptions{})
			requireStatus(t, err, c.code, c.words...)
		})
	}
}

func TestCreateDefaultsAndDropsStatus(t *testing.T) {
	h := build(t)
	p := smallPod("p")
	p.Status.PodIP = "1.2.3.4"
	p = put(h, v1("Pod", ""), p)
	require.Equal(t, corev1.RestartPolicyAlways, p.Spec.RestartPolicy)
	require.Equal(t, corev1.PodPending, p.Status.Phase)
	require.Empty(t, p.Status.PodIP)
	require.Equal(t, corev1.PodQOSBestEffort, p.Status.QOSClass)
}

func TestGenerateName(t *testing.T) {
	h := build(t)
	seen := map[string]bool{}
	for range 5 {
		cm := configMap("")
		cm.GenerateName = "web-"
		cm = put(h, v1("ConfigMap", ""), cm)
		require.Regexp(t, `^web-[a-z0-9]{5}$`, cm.Name)
		require.False(t, seen[cm.Name])
		seen[cm.Name] = true
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	h := build(t)
	dry := []string{metav1.DryRunAll}
	res, err := h.Create(h.ctx, v1("ConfigMap", ""), configMap("a"), metav1.CreateOptions{DryRun: dry})
	require.NotEmpty(t, answer[*corev1.ConfigMap](t, res, err).UID)
	_, err = h.Get(h.ctx, v1("ConfigMap", "a"), metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))

	a := put(h, v1("ConfigMap", ""), configMap("a"))
	_, err = h.Create(h.ctx, v1("ConfigMap", ""), configMap("a"), metav1.CreateOptions{DryRun: dry})
	require.True(t, apierrors.IsAlreadyExists(err))
	next := copied(a)
	next.Data = map[string]string{"k": "v"}
	res, err = h.Update(h.ctx, v1("ConfigMap", "a"), next, metav1.UpdateOptions{DryRun: dry})
	require.Equal(t, "v", answer[*corev1.ConfigMap](t, res, err).Data["k"])
	_, err = h.Delete(h.ctx, v1("ConfigMap", "a"), metav1.DeleteOptions{DryRun: dry})
	require.NoError(t, err)
	res, err = h.Get(h.ctx, v1("ConfigMap", "a"), metav1.GetOptions{})
	require.Equal(t, a, answer[*corev1.ConfigMap](t, res, err))
}

func TestUpdate(t *testing.T) {
	h := build(t)
	a := put(h, v1("ConfigMap", ""), configMap("a", "k", "1"))
	b := copied(a)
	b.Data["k"] = "2"
	res, err := h.Update(h.ctx, v1("ConfigMap", "a"), copied(b), metav1.UpdateOptions{})
	updated := answer[*corev1.ConfigMap](t, res, err)
	require.NotEqual(t, a.ResourceVersion, updated.ResourceVersion)

	_, err = h.Update(h.ctx, v1("ConfigMap", "a"), copied(b), metav1.UpdateOptions{})
	requireStatus(t, err, 409,
		`Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again`)

	unconditional := configMap("a", "k", "3")
	res, err = h.Update(h.ctx, v1("ConfigMap", "a"), unconditional, metav1.UpdateOptions{})
	third := answer[*corev1.ConfigMap](t, res, err)
	require.Equal(t, a.UID, third.UID)
	require.Equal(t, a.CreationTimestamp, third.CreationTimestamp)

	before := h.cache.Revision()
	res, err = h.Update(h.ctx, v1("ConfigMap", "a"), copied(third), metav1.UpdateOptions{})
	require.Equal(t, third.ResourceVersion, answer[*corev1.ConfigMap](t, res, err).ResourceVersion,
		"nothing changed, nothing written")
	require.Equal(t, before, h.cache.Revision())

	other := configMap("a")
	other.UID = "another"
	_, err = h.Update(h.ctx, v1("ConfigMap", "a"), other, metav1.UpdateOptions{})
	requireStatus(t, err, 409, "UID in precondition: another")
	_, err = h.Update(h.ctx, v1("ConfigMap", "b"), configMap("a"), metav1.UpdateOptions{})
	requireStatus(t, err, 400, "the name of the object (a) does not match the name on the URL (b)")
	_, err = h.Update(h.ctx, v1("ConfigMap", "b"), configMap("b"), metav1.UpdateOptions{})
	requireStatus(t, err, 404, `configmaps "b" not found`)
}

func TestUpdateCreatesWhereAllowed(t *testing.T) {
	h := build(t)
	lease := at(coordinationv1.SchemeGroupVersion.WithKind("Lease"), "work", "l")
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "work"}}
	res, err := h.Update(h.ctx, lease, l, metav1.UpdateOptions{})
	require.NotEmpty(t, answer[*coordinationv1.Lease](t, res, err).UID)
	require.True(t, res.Created)
	_, err = h.Update(h.ctx, lease, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "work"}},
		metav1.UpdateOptions{})
	requireStatus(t, err, 422, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")
}

func TestGenerationCountsSpecAlone(t *testing.T) {
	h := build(t)
	d := put(h, deployments(""), deployment("d"))
	require.EqualValues(t, 1, d.Generation)
	s := copied(d)
	s.Status.Replicas, s.Status.ObservedGeneration = 1, 1
	s.Spec.Paused = true // must not be changed by an update of the status
	res, err := h.Update(h.ctx, sub(deployments("d"), "status"), s, metav1.UpdateOptions{})
	d = answer[*appsv1.Deployment](t, res, err)
	require.EqualValues(t, 1, d.Generation)
	require.False(t, d.Spec.Paused)
	require.EqualValues(t, 1, d.Status.Replicas)
	res, err = h.Patch(h.ctx, deployments("d"), types.MergePatchType,
		[]byte(`{"spec":{"paused":true},"status":{"replicas":9}}`), metav1.PatchOptions{})
	d = answer[*appsv1.Deployment](t, res, err)
	require.EqualValues(t, 2, d.Generation)
	require.EqualValues(t, 1, d.Status.Replicas)
}

func deployments(name string) Target {
	return at(appsv1.SchemeGroupVersion.WithKind("Deployment"), "work", name)
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: smallPod("").Spec},
	}}
}

func TestScale(t *testing.T) {
	h := build(t)
	put(h, deployments(""), deployment("d"))
	target := sub(deployments("d"), "scale")
	res, err := h.Get(h.ctx, target, metav1.GetOptions{})
	s := answer[*autoscalingv1.Scale](t, res, err)
	require.EqualValues(t, 1, s.Spec.Replicas)
	require.Equal(t, "app=d", s.Status.Selector)

	s.Spec.Replicas = 3
	res, err = h.Update(h.ctx, target, copied(s), metav1.UpdateOptions{})
	require.EqualValues(t, 3, answer[*autoscalingv1.Scale](t, res, err).Spec.Replicas)
	_, err = h.Update(h.ctx, target, copied(s), metav1.UpdateOptions{})
	requireStatus(t, err, 409, "the object has been modified")
	s.ResourceVersion, s.Spec.Replicas = "", -1
	_, err = h.Update(h.ctx, target, copied(s), metav1.UpdateOptions{})
	requireStatus(t, err, 422, "spec.replicas: Invalid value: -1")
	res, err = h.Patch(h.ctx, target, types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{})
	require.EqualValues(t, 5, answer[*autoscalingv1.Scale](t, res, err).Spec.Replicas)
	res, err = h.Get(h.ctx, deployments("d"), metav1.GetOptions{})
	d := answer[*appsv1.Deployment](t, res, err)
	require.EqualValues(t, 5, *d.Spec.Replicas)
	require.EqualValues(t, 3, d.Generation)
}

func TestBinding(t *testing.T) {
	h := build(t)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}},
	}
	put(h, at(corev1.SchemeGroupVersion.WithKind("Node"), "", ""), node)
	p := put(h, v1("Pod", ""), smallPod("p"))
	b := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"a": "b"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "n"},
	}

	wrong := copied(b)
	wrong.UID = "other"
	_, err := h.Create(h.ctx, sub(v1("Pod", "p"), "binding"), wrong, metav1.CreateOptions{})
	requireStatus(t, err, 409, "UID in precondition")
	res, err := h.Create(h.ctx, sub(v1("Pod", "p"), "binding"), copied(b), metav1.CreateOptions{})
	require.Equal(t, metav1.StatusSuccess, answer[*metav1.Status](t, res, err).Status)
	res, err = h.Get(h.ctx, v1("Pod", "p"), metav1.GetOptions{})
	bound := answer[*corev1.Pod](t, res, err)
	require.Equal(t, "n", bound.Spec.NodeName)
	require.Equal(t, "b", bound.Annotations["a"])
	require.Equal(t, "z", bound.Labels[corev1.LabelTopologyZone])
	require.Equal(t, corev1.PodScheduled, bound.Status.Conditions[0].Type)
	require.Equal(t, p.UID, bound.UID)
	_, err = h.Create(h.ctx, sub(v1("Pod", "p"), "binding"), copied(b), metav1.CreateOptions{})
	requireStatus(t, err, 409, `Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n"`)
}

func TestEviction(t *testing.T) {
	h := build(t)
	bound := smallPod("p")
	bound.Spec.NodeName = "n"
	p := put(h, v1("Pod", ""), bound)
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "work"}}
	wrong := types.UID("other")
	refused := copied(e)
	refused.DeleteOptions = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}
	_, err := h.Create(h.ctx, sub(v1("Pod", "p"), "eviction"), refused, metav1.CreateOptions{})
	requireStatus(t, err, 409, "the UID in the precondition (other)")
	_, err = h.Create(h.ctx, sub(v1("Pod", "p"), "eviction"), e, metav1.CreateOptions{})
	require.NoError(t, err)
	res, err := h.Get(h.ctx, v1("Pod", "p"), metav1.GetOptions{})
	gone := answer[*corev1.Pod](t, res, err)
	require.NotNil(t, gone.DeletionTimestamp)
	require.Equal(t, p.UID, gone.UID)
	require.Equal(t, corev1.DisruptionTarget, gone.Status.Conditions[0].Type)
}

func TestEventsAreServedTwice(t *testing.T) {
	h := build(t)
	newer := at(eventsv1.SchemeGroupVersion.WithKind("Event"), "work", "")
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "work"}, EventTime: metav1.NowMicro(), Note: "hello", Reason: "R",
		Action: "A",
		Type:   "Normal", ReportingController: "c.io/x", ReportingInstance: "i",
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "work", Name: "p"},
	}
	require.Equal(t, "hello", put(h, newer, e).Note)
	res, err := h.Get(h.ctx, v1("Event", "e"), metav1.GetOptions{})
	require.Equal(t, "hello", answer[*corev1.Event](t, res, err).Message)
	l, err := h.List(h.ctx, newer, metav1.ListOptions{FieldSelector: "regarding.name=p"})
	require.NoError(t, err)
	require.Len(t, l.Entries, 1)
	require.Equal(t, "hello", l.Entries[0].Object.(*eventsv1.Event).Note)
	require.Contains(t, string(l.Entries[0].JSON()), `"apiVersion":"events.k8s.io/v1"`)
}

// The generated validation rules apply in every served version, with the same messages.
func TestRulesHoldInAllVersions(t *testing.T) {
	h := build(t)
	create := func(version string, o runtime.Object) string {
		_, err := h.Create(h.ctx,
			at(schema.GroupVersionKind{Group: "autoscaling", Version: version, Kind: "HorizontalPodAutoscaler"}, "work", ""), o,
			metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		return err.Error()
	}
	meta := metav1.ObjectMeta{Name: "a", Namespace: "work"}
	older := create("v1", &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: meta, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}},
	})
	newer := create("v2", &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: meta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}},
	})
	require.Equal(t, newer, older)
	require.Contains(t, newer, "spec.maxReplicas: Required value")
}

type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) AddWarning(_, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func TestRepeatedOwnersAreDroppedWithAWarning(t *testing.T) {
	h := build(t)
	w := &warnings{}
	cm := configMap("a")
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}
	cm.OwnerReferences = []metav1.OwnerReference{ref, ref}
	res, err := h.Create(warning.WithWarningRecorder(h.ctx, w), v1("ConfigMap", ""), cm, metav1.CreateOptions{})
	require.Len(t, answer[*corev1.ConfigMap](t, res, err).OwnerReferences, 1)
	require.Len(t, w.text, 1)
	require.Contains(t, w.text[0], "duplicate UID(s) observed: u")
}

func TestWatch(t *testing.T) {
	h := build(t)
	a := put(h, v1("ConfigMap", ""), configMap("a"))
	events := func(o metav1.ListOptions, n int) (initial []string, got []string) {
		w, first, _, err := h.Watch(h.ctx, v1("ConfigMap", ""), o)
		require.NoError(t, err)
		defer w.Close()
		for _, e := range first {
			initial = append(initial, e.Object.GetName())
		}
		for len(got) < n {
			batch, err := w.Next(h.ctx)
			require.NoError(t, err)
			for _, e := range batch {
				if e.Type != string(watch.Bookmark) {
					got = append(got, e.Type+" "+e.Entry.Object.GetName())
				}
			}
		}
		return initial, got
	}
	put(h, v1("ConfigMap", ""), configMap("b"))
	initial, _ := events(metav1.ListOptions{}, 0)
	require.Equal(t, []string{"a", "b"}, initial)
	initial, got := events(metav1.ListOptions{ResourceVersion: a.ResourceVersion}, 1)
	require.Empty(t, initial)
	require.Equal(t, []string{"ADDED b"}, got)
	yes := true
	initial, _ = events(metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}, 0)
	require.Equal(t, []string{"a", "b"}, initial)

	_, _, _, err := h.Watch(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{SendInitialEvents: &yes})
	requireStatus(t, err, 422, "sendInitialEvents requires setting resourceVersionMatch")
	_, _, _, err = h.Watch(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{FieldSelector: "spec.x=1"})
	requireStatus(t, err, 400, "\"spec.x\" is not a known field selector")
	_, _, _, err = h.Watch(h.ctx, v1("ConfigMap", ""), metav1.ListOptions{ResourceVersion: "x"})
	requireStatus(t, err, 400, "invalid resource version")
}

var leaseKind = coordinationv1.SchemeGroupVersion.WithKind("Lease")

func newLease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}}
}

// The cache keeps the object that was written: it must equal what decoding the stored bytes gives.
func TestTheCacheHoldsWhatIsStored(t *testing.T) {
	h := build(t)
	put(h, v1("Pod", ""), BigPod("p"))
	_, err := h.Create(h.ctx, sub(v1("Pod", "p"), "binding"),
		&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	put(h, deployments(""), deployment("d"))
	put(h, v1("Service", ""), service("s", corev1.ServiceTypeNodePort))
	for _, target := range []Target{v1("Pod", "p"), deployments("d"), v1("Service", "s")} {
		e := h.cache.Get(target.Resource, "work", target.Name)
		kv, err := h.store.Get(h.ctx, e.Key)
		require.NoError(t, err)
		fresh, err := target.Resource.Decode(kv.Value, kv.Revision)
		require.NoError(t, err)
		require.True(t, equality.Semantic.DeepEqual(fresh, e.Object))
		require.Equal(t, fresh.GetCreationTimestamp(), e.Object.GetCreationTimestamp())
		want, err := json.Marshal(fresh)
		require.NoError(t, err)
		require.Equal(t, string(want), string(e.JSON()))
	}
}
