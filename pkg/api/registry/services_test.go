package registry

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestServicesGetDistinctAddresses(t *testing.T) {
	h := build(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ips, ports := map[string]string{}, map[int32]string{}
	for i := range 60 {
		wg.Go(func() {
			name := fmt.Sprintf("s%d", i)
			res, err := h.Create(h.ctx, v1("Service", ""), service(name, corev1.ServiceTypeNodePort), metav1.CreateOptions{})
			if !assertNoError(t, err) {
				return
			}
			o, _ := res.Value()
			s := o.(*corev1.Service)
			mu.Lock()
			defer mu.Unlock()
			if other := ips[s.Spec.ClusterIP]; other != "" {
				t.Errorf("%s and %s have %s", other, name, s.Spec.ClusterIP)
			}
			if other := ports[s.Spec.Ports[0].NodePort]; other != "" {
				t.Errorf("%s and %s have port %d", other, name, s.Spec.Ports[0].NodePort)
			}
			ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = name, name
		})
	}
	wg.Wait()
	require.Len(t, ips, 60)
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func service(name string, kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Spec: corev1.ServiceSpec{
		Type: kind, Selector: map[string]string{"app": "x"}, Ports: []corev1.ServicePort{{Port: 80}}}}
}

func TestServiceAllocation(t *testing.T) {
	h := build(t)
	a := put(h, v1("Service", ""), service("a", corev1.ServiceTypeClusterIP))
	require.Equal(t, []string{a.Spec.ClusterIP}, a.Spec.ClusterIPs)
	require.Equal(t, []corev1.IPFamily{corev1.IPv4Protocol}, a.Spec.IPFamilies)
	require.Equal(t, corev1.IPFamilyPolicySingleStack, *a.Spec.IPFamilyPolicy)

	taken := service("b", corev1.ServiceTypeClusterIP)
	taken.Spec.ClusterIP = a.Spec.ClusterIP
	_, err := h.Create(h.ctx, v1("Service", ""), copied(taken), metav1.CreateOptions{})
	requireStatus(t, err, 422, "spec.clusterIPs", "provided IP is already allocated")
	taken.Spec.ClusterIP = "10.99.0.1"
	_, err = h.Create(h.ctx, v1("Service", ""), copied(taken), metav1.CreateOptions{})
	requireStatus(t, err, 422, "the provided network does not match the current range")
	dual := service("b", corev1.ServiceTypeClusterIP)
	policy := corev1.IPFamilyPolicyRequireDualStack
	dual.Spec.IPFamilyPolicy = &policy
	_, err = h.Create(h.ctx, v1("Service", ""), dual, metav1.CreateOptions{})
	requireStatus(t, err, 422, "this cluster is not configured for dual-stack services")

	headless := service("h", corev1.ServiceTypeClusterIP)
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	require.Equal(t, []string{"None"}, put(h, v1("Service", ""), headless).Spec.ClusterIPs)

	// To NodePort and back, with unchanged manifests.
	res, err := h.Update(h.ctx, v1("Service", "a"), service("a", corev1.ServiceTypeNodePort), metav1.UpdateOptions{})
	b := answer[*corev1.Service](t, res, err)
	require.Equal(t, a.Spec.ClusterIP, b.Spec.ClusterIP)
	require.NotZero(t, b.Spec.Ports[0].NodePort)
	res, err = h.Update(h.ctx, v1("Service", "a"), service("a", corev1.ServiceTypeNodePort), metav1.UpdateOptions{})
	require.Equal(t, b.Spec.Ports[0].NodePort, answer[*corev1.Service](t, res, err).Spec.Ports[0].NodePort)
	clash := service("c", corev1.ServiceTypeNodePort)
	clash.Spec.Ports[0].NodePort = b.Spec.Ports[0].NodePort
	_, err = h.Create(h.ctx, v1("Service", ""), copied(clash), metav1.CreateOptions{})
	requireStatus(t, err, 422, "spec.ports[0].nodePort", "provided port is already allocated")
	res, err = h.Patch(h.ctx, v1("Service", "a"), types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP"}}`),
		metav1.PatchOptions{})
	require.Zero(t, answer[*corev1.Service](t, res, err).Spec.Ports[0].NodePort)
	put(h, v1("Service", ""), clash)

	// Changing to ExternalName releases the address.
	res, err = h.Patch(h.ctx, v1("Service", "a"), types.MergePatchType,
		[]byte(`{"spec":{"type":"ExternalName","externalName":"x.org","clusterIP":"","clusterIPs":null}}`),
		metav1.PatchOptions{})
	require.Empty(t, answer[*corev1.Service](t, res, err).Spec.ClusterIP)
	again := service("d", corev1.ServiceTypeClusterIP)
	again.Spec.ClusterIP = a.Spec.ClusterIP
	put(h, v1("Service", ""), again)
	_, err = h.Delete(h.ctx, v1("Service", "d"), metav1.DeleteOptions{})
	require.NoError(t, err)
	again.Name = "e"
	put(h, v1("Service", ""), again)
}
