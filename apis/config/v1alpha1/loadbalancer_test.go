package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLoadBalancerPool(t *testing.T) {
	for _, c := range []struct {
		pool []string
		want []string // "first-last"; nil for an error
		err  string
	}{
		{pool: []string{"192.0.2.16/28", "198.51.100.7-198.51.100.9", "203.0.113.5/32"},
			want: []string{"192.0.2.17-192.0.2.30", "198.51.100.7-198.51.100.9", "203.0.113.5-203.0.113.5"}},
		{pool: []string{"192.0.2.16/31"}, want: []string{"192.0.2.16-192.0.2.17"}},
		{pool: []string{"192.0.2.17/28"}, err: "you may mean 192.0.2.16/28"},
		{pool: []string{"192.0.2.9-192.0.2.8"}, err: "ends before it begins"},
		{pool: []string{"192.0.2.0/24", "192.0.2.7-192.0.2.7"}, err: "overlaps 192.0.2.1-192.0.2.254"},
		{pool: []string{"fd00::/64"}, err: "is not an IPv4 CIDR or range"},
		{pool: []string{"x"}, err: "is not an IPv4 CIDR or range"},
		{pool: []string{"126.0.0.0-128.0.0.0"}, err: "which clients cannot reach"},
		{pool: []string{"239.1.1.1-239.1.1.2"}, err: "which clients cannot reach"},
		{pool: []string{"10.42.7.0/24"}, err: "overlaps the cluster's own range 10.42.0.0/16"},
		{pool: []string{"10.0.0.0-11.0.0.0"}, err: "overlaps the cluster's own range 10.42.0.0/16"},
	} {
		config := Default()
		config.LoadBalancerPool = c.pool
		err := config.Validate()
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		all, err := ParsePool(c.pool)
		require.NoError(t, err)
		var got []string
		for _, r := range all {
			got = append(got, r.First.String()+"-"+r.Last.String())
		}
		require.Equal(t, c.want, got)
	}
}
