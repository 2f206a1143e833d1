package cache

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestStatsDescribeWhatIsHeld(t *testing.T) {
	s := openStore(t)
	reg := prometheus.NewPedanticRegistry()
	c := openCache(t, Config{Source: s, RingSize: ringStart, Metrics: reg})
	row := pods
	w, _, _, err := c.Watch(row, Query{}, c.Revision())
	require.NoError(t, err)
	defer w.Close()
	old := c.Revision()
	var rev int64
	for i := range 3 * ringStart {
		rev = put(t, s, row,
			pod("a", "p"+strings.Repeat("x", i), func(p *corev1.Pod) {
				p.Labels = map[string]string{"a": strings.Repeat("l", 50)}
			}), 0)
	}
	require.NoError(t, c.WaitFor(t.Context(), rev))
	_, err = w.Next(t.Context())
	require.ErrorIs(t, err, ErrExpired)
	_, _, _, err = c.Watch(row, Query{}, old)
	require.ErrorIs(t, err, ErrExpired)

	all := c.Stats()
	got := all[slices.IndexFunc(all, func(s Stats) bool { return s.Resource == "pods" })]
	require.Equal(t,
		Stats{
			GroupResource: schema.GroupResource{Resource: "pods"}, Version: "v1", Objects: 3 * ringStart, Revision: rev,
			Watchers: 1,
			Ring:     ringStart, RingLimit: ringStart, Oldest: got.Oldest, Changes: 3 * ringStart, Expired: 1, Refused: 1,
		}, got)
	require.Less(t, got.Oldest, rev)

	before := c.Sizes()[got.GroupResource]
	require.Greater(t, before.Objects, int64(3*ringStart*50))
	require.Zero(t, before.Encodings, "measuring leaves nothing behind")
	list, _ := c.List(row, Query{})
	encoded := 0
	for _, e := range list {
		encoded += len(e.JSON())
	}
	require.Equal(t, int64(encoded), c.Sizes()[got.GroupResource].Encodings)

	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}
