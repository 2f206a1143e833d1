package kontrol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// TestLastSeenIsNowWhileReady checks that the age of the last write does not look like an absence.
func TestLastSeenIsNowWhileReady(t *testing.T) {
	var c kontrol.Cluster
	require.Equal(t, "never", seenText(&c))
	c.Status.LastSeen = new(metav1.NewTime(time.Now().Add(-4*time.Minute - time.Second)))
	require.Regexp(t, "^4m", seenText(&c))
	c.Status.Conditions = []metav1.Condition{{Type: kontrol.ConditionReady, Status: metav1.ConditionTrue}}
	require.Equal(t, "now", seenText(&c))
}
