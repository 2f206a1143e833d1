package network

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNoAddress(t *testing.T) {
	n := newNet(t)
	require.NoError(t, n.SetPodCIDR(context.Background(), netip.MustParsePrefix("10.9.0.0/30")))
	setup(t, n, Pod{UID: "a"})
	_, err := n.Setup(context.Background(), Pod{UID: "b"})
	require.ErrorIs(t, err, ErrNoAddress)
	require.NoError(t, n.Teardown(context.Background(), "a"))
	setup(t, n, Pod{UID: "b"})
}

func TestConfig(t *testing.T) {
	good := Config{RunDir: "/run/x", NodeIP: nodeIP}
	for name, change := range map[string]func(*Config){
		"node address": func(c *Config) { c.NodeIP = netip.MustParseAddr("127.0.0.1") },
		"pod CIDR":     func(c *Config) { c.PodCIDR = netip.MustParsePrefix("10.42.0.1/24") },
		"service CIDR": func(c *Config) { c.ServiceCIDR = netip.MustParsePrefix("fd00::/108") },
		"name prefix":  func(c *Config) { c.Prefix = "A b" },
		"absolute":     func(c *Config) { c.RunDir = "run" },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Validate(), name)
	}
	require.NoError(t, good.Validate())
	require.Equal(t, "coracle", good.Prefix)
	c := good
	c.NodeIP = netip.MustParseAddr("198.51.100.7")
	c.RunDir = t.TempDir()
	_, err := New(c)
	require.ErrorContains(t, err, "not on any interface")
}

// TestPool checks that addresses are in the range, have one owner, and are not allocated twice in a row.
func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(26, 30).Draw(t, "bits")
		prefix := netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), bits)
		p := newPool()
		p.setPrefix(prefix)
		usable := 1<<(32-bits) - 3
		held := map[string]netip.Addr{}
		var last netip.Addr
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "get") {
				owner := fmt.Sprint(i)
				a, err := p.get(owner)
				if len(held) == usable {
					require.ErrorIs(t, err, ErrNoAddress)
					continue
				}
				require.NoError(t, err)
				require.True(t, prefix.Contains(a))
				for _, other := range held {
					require.NotEqual(t, other, a)
				}
				if usable-len(held) > 1 {
					require.NotEqual(t, last, a, "an address is not given twice in a row while there is another")
				}
				held[owner], last = a, a
				again, err := p.get(owner)
				require.NoError(t, err)
				require.Equal(t, a, again)
				continue
			}
			for _, owner := range slices.Sorted(maps.Keys(held)) {
				p.put(held[owner], "someone else")
				p.put(held[owner], owner)
				delete(held, owner)
				break
			}
		}
	})
}

func TestIntervals(t *testing.T) {
	var got []string
	elements := intervals([]netip.Prefix{
		netip.MustParsePrefix("10.42.1.0/24"), netip.MustParsePrefix("10.42.0.0/16"),
		netip.MustParsePrefix("255.0.0.0/8"), netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("10.42.0.0/16"),
	}, "mine")
	for _, e := range elements {
		a, _ := netip.AddrFromSlice(e.Key)
		got = append(got, fmt.Sprint(a, " ", e.IntervalEnd))
	}
	require.Equal(t, []string{"10.42.0.0 false", "10.43.0.0 true", "10.43.0.0 false", "10.44.0.0 true", "255.0.0.0 false"},
		got)
	owner := ""
	require.Equal(t, "[10.42.0.0/16 10.43.0.0/16 255.0.0.0/8]", fmt.Sprint(prefixesOf(elements, &owner)))
	require.Equal(t, "mine", owner)
}

// TestNeighbours checks that an installation finds others with its addresses, and no other ones.
func TestNeighbours(t *testing.T) {
	n := newNet(t)
	own := n.Prefix
	find := func(prefix string, ranges ...string) []Neighbour {
		var all []netip.Prefix
		for _, r := range ranges {
			all = append(all, netip.MustParsePrefix(r))
		}
		found, err := Neighbours(prefix, all...)
		require.NoError(t, err)
		return found
	}
	require.Empty(t, find(own, "10.42.0.0/16"))
	require.Empty(t, find("other", "10.52.0.0/16", "10.53.0.0/16"))
	overlap := []netip.Prefix{podCIDR}
	require.Equal(t, []Neighbour{{"table coracle_net", overlap}}, find("other", "10.42.0.0/16", "10.53.0.0/16"))
	n.nat.owner = "/var/lib/mine"
	require.NoError(t, n.Rewrite(t.Context()))
	require.Equal(t, []Neighbour{{"/var/lib/mine", append(overlap, n.ServiceCIDR)}},
		find("other", "10.42.0.0/16", "10.43.128.0/24"))
}

func TestSysctlPath(t *testing.T) {
	for name, path := range map[string]string{
		"net.ipv4.ip_forward": "/proc/sys/net/ipv4/ip_forward", "net/ipv4/conf/eth0.1/x": "/proc/sys/net/ipv4/conf/eth0.1/x",
		"net.ipv4.conf.eth0/1.x": "/proc/sys/net/ipv4/conf/eth0.1/x"} {
		require.Equal(t, path, sysctlPath(name))
	}
}

// TestSysctlsAreRecordedAtOnce checks that the file with the previous values is replaced, not rewritten: half a file,
// of a process that was killed, would keep the node from starting.
func TestSysctlsAreRecordedAtOnce(t *testing.T) {
	c := Config{RunDir: t.TempDir()}
	const name, before = "net/ipv4/ip_default_ttl", `{"net/ipv4/ip_no_pmtu_disc":"0"}`
	require.NoError(t, os.WriteFile(c.sysctlFile(), []byte(before), 0o600))
	old, err := os.Open(c.sysctlFile())
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, c.setSysctl(name, "65"))
	data, err := io.ReadAll(old)
	require.NoError(t, err)
	require.Equal(t, before, string(data))
	kept, err := c.savedSysctls()
	require.NoError(t, err)
	require.Len(t, kept, 2)
	require.NoError(t, c.resetSysctls(false))
}
