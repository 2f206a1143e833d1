package resourcequota

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		hard, statusHard, was, used corev1.ResourceList
		want                        corev1.ResourceList
		changed                     bool
	}{
		"first":                  {list("pods", "2"), nil, nil, list("pods", "0"), list("pods", "0"), true},
		"nothing limited, first": {list(), nil, nil, list(), list(), true},
		"same": {
			list("cpu", "2"), list("cpu", "2"), list("cpu", "1"), list("cpu", "1000m"), list("cpu", "1"), false,
		},
		"use changed": {
			list("pods", "2"), list("pods", "2"), list("pods", "2"), list("pods", "1"), list("pods", "1"), true,
		},
		"limit raised": {
			list("pods", "3"), list("pods", "2"), list("pods", "1"), list("pods", "1"), list("pods", "1"), true,
		},
		"no longer limited": {
			list("pods", "2"), list("pods", "2", "cpu", "1"), list("pods", "1", "cpu", "1"), list("pods", "1"),
			list("pods", "1"), true,
		},
		"counted by nobody": {
			list("x/y", "2"), list("x/y", "2"), list("x/y", "1"), list(), list("x/y", "1"), false,
		},
		"counted, but never asked of": {
			list("pods", "2"), list("pods", "2"), list("pods", "1"), list("pods", "1", "cpu", "3"), list("pods", "1"), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := &corev1.ResourceQuota{
				Spec: corev1.ResourceQuotaSpec{Hard: c.hard}, Status: corev1.ResourceQuotaStatus{Hard: c.statusHard, Used: c.was},
			}
			status, changed := Plan(q, c.used)
			require.Equal(t, c.changed, changed)
			require.Equal(t, c.hard, status.Hard)
			require.Len(t, status.Used, len(c.want))
			for n, v := range c.want {
				have := status.Used[n]
				require.Zero(t, v.Cmp(have), "%s: %s", n, have.String())
			}
		})
	}
}
