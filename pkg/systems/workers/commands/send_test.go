package commands

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

func TestAStatusIsNoChange(t *testing.T) {
	worker := func(generation int64, version string, labels map[string]string) *workers.Worker {
		return &workers.Worker{
			ObjectMeta: metav1.ObjectMeta{Generation: generation, ResourceVersion: version, Labels: labels},
		}
	}
	require.True(t, sameButStatus(worker(1, "5", nil), worker(1, "6", nil)), "its controller wrote the status meanwhile")
	require.False(t, sameButStatus(worker(1, "5", nil), worker(2, "6", nil)))
	require.False(t, sameButStatus(worker(1, "5", nil), worker(1, "6", map[string]string{"a": "b"})),
		"labels have no generation")
	require.False(t, sameButStatus(worker(0, "5", nil), worker(0, "6", nil)),
		"nothing is known of kinds without generations")
}
