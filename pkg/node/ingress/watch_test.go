package ingress

import (
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestClassesComeAndGo checks that Ingresses are no longer served if their class is deleted or gets another
// controller.
func TestClassesComeAndGo(t *testing.T) {
	i := &Ingress{classes: map[string]bool{}, wake: make(chan struct{}, 1)}
	name := "other"
	o := &networkingv1.Ingress{Spec: networkingv1.IngressSpec{IngressClassName: &name}}
	class := func(controller string) *networkingv1.IngressClass {
		return &networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: controller},
		}
	}
	ours, theirs := class(Controller), class("example.com/nginx")
	i.seeClass(nil, ours)
	require.True(t, i.isOurs(o))
	i.seeClass(ours, nil)
	require.False(t, i.isOurs(o))
	i.seeClass(nil, ours)
	i.seeClass(ours, theirs)
	require.False(t, i.isOurs(o))
	require.Empty(t, i.classes)
}
