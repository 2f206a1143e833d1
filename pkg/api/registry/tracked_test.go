package registry

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/registry/fieldset"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

func managersOf(o metav1.Object) (all []string) {
	for _, m := range o.GetManagedFields() {
		sub := ""
		if m.Subresource != "" {
			sub = "/" + m.Subresource
		}
		all = append(all, fmt.Sprintf("%s%s %s %s", m.Manager, sub, m.Operation, m.FieldsV1.Raw))
	}
	return all
}

func createdBy(manager string) metav1.CreateOptions {
	return metav1.CreateOptions{FieldManager: manager}
}

func TestWritesRecordTheirManagers(t *testing.T) {
	h := build(t)
	res, err := h.Create(h.ctx, v1("ConfigMap", ""), configMap("a", "k", "1", "l", "1"), createdBy("kubectl-create"))
	cm := answer[*corev1.ConfigMap](t, res, err)
	require.Equal(t, []string{`kubectl-create Update {"f:data":{".":{},"f:k":{},"f:l":{}}}`}, managersOf(cm))
	require.Equal(t, "v1", cm.ManagedFields[0].APIVersion)
	require.Equal(t, "FieldsV1", cm.ManagedFields[0].FieldsType)
	require.Zero(t, cm.ManagedFields[0].Time.Nanosecond(), "as it is read from the store")

	body := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: '2'}\n"
	_, err = h.Patch(h.ctx, v1("ConfigMap", "a"), types.ApplyPatchType, []byte(body), by("alice"))
	requireStatus(t, err, 409, `Apply failed with 1 conflict: conflict with "kubectl-create" using v1: .data.k`)

	now := copied(cm)
	now.Data["l"] = "2"
	res, err = h.Update(h.ctx, v1("ConfigMap", "a"), now, metav1.UpdateOptions{FieldManager: "bob"})
	cm = answer[*corev1.ConfigMap](t, res, err)
	require.ElementsMatch(t,
		[]string{`kubectl-create Update {"f:data":{".":{},"f:k":{}}}`, `bob Update {"f:data":{"f:l":{}}}`}, managersOf(cm))

	res, err = h.Patch(h.ctx, v1("ConfigMap", "a"), types.MergePatchType, []byte(`{"data":{"k":null,"m":"1"}}`),
		by("carol"))
	cm = answer[*corev1.ConfigMap](t, res, err)
	require.ElementsMatch(t,
		[]string{
			`kubectl-create Update {"f:data":{}}`, `bob Update {"f:data":{"f:l":{}}}`, `carol Update {"f:data":{"f:m":{}}}`,
		}, managersOf(cm))

	kvs, _, _, err := h.store.Range(h.ctx, "/registry/configmaps/work/", "/registry/configmaps/work/a", 1, 0)
	require.NoError(t, err)
	stored, err := v1("ConfigMap", "a").Resource.Decode(kvs[0].Value, kvs[0].Revision)
	require.NoError(t, err)
	require.Equal(t, managersOf(cm), managersOf(stored))

	// A client may clear managed fields; then nothing is recorded.
	res, err = h.Patch(h.ctx, v1("ConfigMap", "a"), types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`),
		by("dave"))
	require.Empty(t, managersOf(answer[*corev1.ConfigMap](t, res, err)))
}

func TestAnUpdateThatCreatesRecordsItsManager(t *testing.T) {
	h := build(t)
	lease := v1("ServiceAccount", "a")
	body := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, labels: {a: b}}\n"
	res, err := h.Patch(h.ctx, lease, types.ApplyPatchType, []byte(body), by("alice"))
	require.Equal(t, []string{`alice Apply {"f:metadata":{"f:labels":{"f:a":{}}}}`},
		managersOf(answer[*corev1.ServiceAccount](t, res, err)))
}

func TestManagersOfPartsAndComponents(t *testing.T) {
	h := build(t)
	replicas := int32(2)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "work"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	res, err := h.Create(h.ctx, deployments(""), d, createdBy("kubectl-create"))
	made := answer[*appsv1.Deployment](t, res, err)
	require.Len(t, made.ManagedFields, 1)
	require.Contains(t, managersOf(made)[0], `"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}`)

	now := copied(made)
	now.Status.Replicas = 2
	ctx := request.WithUser(h.ctx, &user.DefaultInfo{Name: "system:serviceaccount:kube-system:deployment-controller"})
	res, err = h.Update(ctx, sub(deployments("d"), "status"), now, metav1.UpdateOptions{})
	require.Contains(t, managersOf(answer[*appsv1.Deployment](t, res, err)),
		`kube-controller-manager/status Update {"f:status":{"f:replicas":{}}}`)

	// Components that write in process use upstream's manager names.
	res, err = h.Create(ctx, v1("ConfigMap", ""), configMap("in-process", "k", "v"), metav1.CreateOptions{})
	require.Equal(t, []string{`kube-controller-manager Update {"f:data":{".":{},"f:k":{}}}`},
		managersOf(answer[*corev1.ConfigMap](t, res, err)))

	task := &tasks.Task{}
	task.Name, task.Namespace, task.Spec.Image = "t", "work", "i"
	res, err = h.Create(h.ctx, at(tasks.GroupVersion.WithKind("Task"), "work", ""), task, createdBy("coracle"))
	require.Contains(t, managersOf(answer[*tasks.Task](t, res, err))[0], `"f:image":{}`)
}

// TestManagersAreUpstreams compares plans with upstream's field manager by the same writes.
func TestManagersAreUpstreams(t *testing.T) {
	fast, slow := build(t), build(t)
	slow.managers.plans = map[managerKey]*fieldset.Plan{}
	for _, row := range slow.kinds.Table().All() {
		for _, part := range []string{"", "status", "ephemeralcontainers", "resize", "finalize"} {
			slow.managers.plans[managerKey{row, part}] = nil
		}
	}
	pod := smallPod("p")
	pod.Spec.ServiceAccountName, pod.Spec.HostNetwork = "default", true
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "B", Value: "1"}, {Name: "A"}, {Name: "B", Value: "2"}}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{
		{ContainerPort: 8080, HostPort: 8080}, {ContainerPort: 80, HostPort: 80, Protocol: "UDP"},
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "work"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
				Spec:       corev1.PodSpec{ServiceAccountName: "x", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}},
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "work"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr("me"), RenewTime: &metav1.MicroTime{Time: time.Unix(1, 0)}},
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e", Namespace: "work"},
		InvolvedObject: corev1.ObjectReference{Namespace: "work", Name: "p"},
		Reason:         "r",
		Message:        "m",
		Count:          1,
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}}},
	}
	endpoints := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}}}},
	} //nolint:staticcheck // still served
	leases, newer := at(coordinationv1.SchemeGroupVersion.WithKind("Lease"), "work", "l"), at(
		eventsv1.SchemeGroupVersion.WithKind("Event"), "work", "e")
	ephemeral := `{"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]},"metadata":{"labels":{"z":"1"}}}`
	steps := []struct {
		target Target
		obj    client.Object // to create; or a patch
		patch  string
		by     string
	}{
		{target: v1("Pod", ""), obj: pod},
		{target: v1("Pod", "p"), patch: `{"metadata":{"labels":{"x":"y"},"annotations":{"a.b/c":"<ü"}}}`},
		{
			target: sub(v1("Pod", "p"), "status"),
			patch:  `{"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}],"conditions":[{"type":"Ready","status":"False"}]}}`, by: "kubelet",
		},
		{
			target: sub(v1("Pod", "p"), "status"), patch: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			by: "kubelet",
		},
		{
			target: sub(v1("Pod", "p"), "status"), patch: `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`,
			by: "other",
		},
		{target: sub(v1("Pod", "p"), "ephemeralcontainers"), patch: ephemeral},
		{target: v1("Pod", "p"), patch: `{"metadata":{"labels":null,"finalizers":["a.b/c"]}}`},
		{target: v1("Service", ""), obj: service},
		{
			target: v1("Service", "s"), patch: `{"spec":{"ports":[{"port":80,"name":"a"},{"port":81,"name":"b"}]}}`, by: "other",
		},
		{target: deployments(""), obj: deployment},
		{target: deployments("d"), patch: `{"spec":{"replicas":3}}`, by: "other"},
		{target: sub(deployments("d"), "status"), patch: `{"status":{"replicas":3}}`, by: "kube-controller-manager"},
		{target: sub(deployments("d"), "scale"), patch: `{"spec":{"replicas":5}}`, by: "kubectl"},
		{target: leases, obj: lease},
		{target: leases, patch: `{"spec":{"renewTime":"2020-01-01T00:00:00.000001Z"}}`},
		{target: v1("Event", ""), obj: event},
		{target: newer, patch: `{"series":{"count":2,"lastObservedTime":"2020-01-01T00:00:00.000001Z"}}`, by: "other"},
		{target: v1("Event", "e"), patch: `{"count":2,"message":"n"}`},
		{target: v1("Node", ""), obj: node},
		{
			target: sub(v1("Node", "n"), "status"),
			patch:  `{"status":{"conditions":[{"type":"Ready","status":"False"}],"addresses":[{"type":"Hostname","address":"n"}]}}`, by: "kubelet",
		},
		{target: v1("Node", "n"), patch: `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`},
		{target: v1("Endpoints", ""), obj: endpoints},
		{target: v1("Endpoints", "s"), patch: `{"subsets":[{"addresses":[{"ip":"10.0.0.2"}]}]}`},
	}
	for i, s := range steps {
		var got [2][]string
		for k, h := range []*env{fast, slow} {
			target := s.target
			if s.obj != nil {
				target.Name = ""
				res, err := h.Create(h.ctx, target, copied(s.obj), createdBy("kubectl-create"))
				got[k] = managersOf(answer[client.Object](t, res, err))
				require.NotEmpty(t, got[k], i)
				continue
			}
			_, err := h.Patch(h.ctx, target, types.StrategicMergePatchType, []byte(s.patch), by(cmp.Or(s.by, "kubectl-edit")))
			require.NoError(t, err, i)
			target.Subresource = ""
			res, err := h.Get(h.ctx, target, metav1.GetOptions{})
			got[k] = managersOf(answer[client.Object](t, res, err))
		}
		require.ElementsMatch(t, got[1], got[0], "step %d", i)
	}
}

func TestManagersOfLargeObjectsAreNotRecorded(t *testing.T) {
	h := build(t)
	many := configMap("many")
	for i := range 20_000 {
		many.Data[fmt.Sprint(i)] = ""
	}
	res, err := h.Create(h.ctx, v1("ConfigMap", ""), many, createdBy("me"))
	require.Len(t, managersOf(answer[*corev1.ConfigMap](t, res, err)), 1, "as in upstream")

	large := configMap("large")
	large.Labels = map[string]string{}
	part := strings.Repeat("p", 60) + "."
	for i := range 11_500 {
		large.Labels[fmt.Sprintf("%s%s%s%sexample/%05d%s", part, part, part, part, i, strings.Repeat("k", 58))] = ""
	}
	res, err = h.Create(h.ctx, v1("ConfigMap", ""), large, createdBy("me"))
	cm := answer[*corev1.ConfigMap](t, res, err)
	require.Greater(t, 2*cm.Size(), store.MaxValueBytes, "too large to store with them")
	require.Empty(t, managersOf(cm))
}

func TestApplyScale(t *testing.T) {
	h := build(t)
	head := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  " +
		"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}\n"
	_, err := h.Patch(h.ctx, deployments("d"), types.ApplyPatchType, []byte(head+"  replicas: 2\n"), by("alice"))
	require.NoError(t, err)
	scale := func(n int) []byte {
		return fmt.Appendf(nil, "apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {name: d}\nspec: {replicas: %d}\n", n)
	}
	target := sub(deployments("d"), "scale")
	_, err = h.Patch(h.ctx, target, types.ApplyPatchType, scale(3), by("bob"))
	requireStatus(t, err, 409, `conflict with "alice"`, ".spec.replicas")
	force := by("bob")
	force.Force = ptr(true)
	res, err := h.Patch(h.ctx, target, types.ApplyPatchType, scale(3), force)
	require.EqualValues(t, 3, answer[*autoscalingv1.Scale](t, res, err).Spec.Replicas)
	got := func() client.Object {
		res, err := h.Get(h.ctx, deployments("d"), metav1.GetOptions{})
		return answer[*appsv1.Deployment](t, res, err)
	}
	all := managersOf(got())
	require.Len(t, all, 2)
	require.Contains(t, all, `bob/scale Apply {"f:spec":{"f:replicas":{}}}`)
	require.NotContains(t, strings.Join(all, ""), `alice Apply {"f:spec":{"f:replicas"`)

	// An update of the scale also takes over the replicas, and alice cannot take them back without force.
	_, err = h.Patch(h.ctx, target, types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), by("hpa"))
	require.NoError(t, err)
	require.Contains(t, managersOf(got()), `hpa/scale Update {"f:spec":{"f:replicas":{}}}`)
	_, err = h.Patch(h.ctx, deployments("d"), types.ApplyPatchType, []byte(head+"  replicas: 2\n"), by("alice"))
	requireStatus(t, err, 409, `conflict with "hpa"`)

	_, err = h.Patch(h.ctx, target, types.ApplyPatchType, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: d}\n"),
		by("bob"))
	requireStatus(t, err, 400, "invalid object type")
	_, err = h.Patch(h.ctx, sub(deployments("none"), "scale"), types.ApplyPatchType, scale(3), by("bob"))
	requireStatus(t, err, 404)
}

func TestApplyWithAUIDToWhatIsNotThere(t *testing.T) {
	h := build(t)
	body := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, uid: abc}\n"
	_, err := h.Patch(h.ctx, v1("ConfigMap", "a"), types.ApplyPatchType, []byte(body), by("alice"))
	requireStatus(t, err, 409, "uid mismatch: the provided object specified uid abc, and no existing object was found")
}

func TestCreateWithAResourceVersionIsRefusedLast(t *testing.T) {
	h := build(t)
	bad := configMap("A_b")
	bad.ResourceVersion = "5"
	_, err := h.Create(h.ctx, v1("ConfigMap", ""), bad, metav1.CreateOptions{})
	requireStatus(t, err, 422, "metadata.name: Invalid value")
	good := configMap("a")
	good.ResourceVersion = "5"
	_, err = h.Create(h.ctx, v1("ConfigMap", ""), copied(good), metav1.CreateOptions{})
	requireStatus(t, err, 400, "resourceVersion should not be set on objects to be created")
	res, err := h.Create(h.ctx, v1("ConfigMap", ""), copied(good), metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll},
	})
	require.Equal(t, "5", answer[*corev1.ConfigMap](t, res, err).ResourceVersion, "a dry run does not reach the storage")
	good.ResourceVersion = "0"
	_, err = h.Create(h.ctx, v1("ConfigMap", ""), copied(good), metav1.CreateOptions{})
	require.NoError(t, err)
}

// A time's zone is shared with package time, which loads it while requests are served.
func TestSpreadLeavesTimeZonesAlone(t *testing.T) {
	at := metav1.NewTime(time.Now().In(time.FixedZone("X", 3600)))
	require.Zero(t, spread(reflect.ValueOf(&at)))
	two := corev1.PodSpec{Containers: make([]corev1.Container, 2)}
	require.EqualValues(t, 4, spread(reflect.ValueOf(&two)))
}
