package bootstrap

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func service(ip string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{"provider": "kubernetes"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip,
			Type:      corev1.ServiceTypeClusterIP,
			Ports:     []corev1.ServicePort{{Port: port}},
		},
	}
}

func binding(role string, groups ...string) *rbacv1.ClusterRoleBinding {
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
	}
	for _, g := range groups {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.GroupKind, Name: g})
	}
	return b
}

func with[T client.Object](o T, change func(T)) T {
	change(o)
	return o
}

func TestPlan(t *testing.T) {
	gone := metav1.Now()
	slice := func(addresses ...string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: addresses}}}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-node-lease"}}
	for name, c := range map[string]struct {
		want, have client.Object
		op         Op
		next       client.Object
	}{
		"missing": {namespace, nil, Create, namespace},
		"there": {
			namespace, with(namespace.DeepCopy(), func(n *corev1.Namespace) { n.Labels = map[string]string{"a": "b"} }), Nothing,
			nil,
		},
		"being deleted": {
			service("10.0.0.1", 443), with(service("10.0.0.1", 1), func(s *corev1.Service) { s.DeletionTimestamp = &gone }),
			Nothing, nil,
		},
		"service as it should be":    {service("10.0.0.1", 443), service("10.0.0.1", 443), Nothing, nil},
		"service with another port":  {service("10.0.0.1", 443), service("10.0.0.1", 444), Update, service("10.0.0.1", 443)},
		"service of another address": {service("10.0.0.1", 443), service("10.0.0.2", 443), Replace, service("10.0.0.2", 443)},
		"service with a selector": {service("10.0.0.1", 443), with(service("10.0.0.1", 443), func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"a": "b"}
		}), Update, service("10.0.0.1", 443)},
		"labels are restored, others stay": {
			service("10.0.0.1", 443), with(service("10.0.0.1", 443), func(s *corev1.Service) {
				s.Labels = map[string]string{"provider": "me", "mine": "yes"}
			}), Update, with(service("10.0.0.1", 443), func(s *corev1.Service) { s.Labels["mine"] = "yes" }),
		},
		"slice with another address": {slice("192.0.2.1"), slice("192.0.2.2"), Update, slice("192.0.2.1")},
		"binding without its group": {
			binding("r", "nodes"), binding("r", "others"), Update, binding("r", "others", "nodes"),
		},
		"binding with another role": {
			binding("r", "nodes"), binding("cluster-admin", "nodes"), Replace, binding("cluster-admin", "nodes"),
		},
		"binding with further groups too": {binding("r", "nodes"), binding("r", "others", "nodes"), Nothing, nil},
	} {
		t.Run(name, func(t *testing.T) {
			op, next := Plan(c.want, c.have)
			require.Equal(t, c.op, op)
			if c.next == nil {
				require.Nil(t, next)
				return
			}
			require.Equal(t, c.next, next)
		})
	}
}
