package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func TestEventsExpire(t *testing.T) {
	r := &Registry{cfg: Config{EventTTL: time.Minute}}
	ttl := func(kind schema.GroupVersionKind) time.Duration {
		return (&call{Registry: r, row: assembled.Kinds().ByGVK(kind)}).ttl()
	}
	require.Equal(t, time.Minute, ttl(corev1.SchemeGroupVersion.WithKind("Event")))
	require.Equal(t, time.Minute, ttl(eventsv1.SchemeGroupVersion.WithKind("Event")))
	require.Zero(t, ttl(corev1.SchemeGroupVersion.WithKind("Pod")))
}
