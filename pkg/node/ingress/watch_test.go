package ingress

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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

// TestSyncsArePaced checks that changes without end take a part of the time only, and that a single one does not wait.
func TestSyncsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wake := make(chan struct{}, 1)
		var at []time.Duration
		began, storm := time.Now(), true
		paced(ctx, wake, func() <-chan time.Time {
			at = append(at, time.Since(began))
			if storm {
				wake <- struct{}{} // a change while sync runs
			}
			time.Sleep(100 * time.Millisecond)
			if storm = time.Since(began) < 5*time.Second; !storm && len(at) == 12 {
				return time.After(3 * time.Second)
			}
			return nil
		})
		require.Equal(t, []time.Duration{0, 500 * time.Millisecond, time.Second}, at[:3])
		require.Len(t, at, 13)
		require.Equal(t, 3100*time.Millisecond, at[12]-at[11], "after an idle time at once")
	})
}
