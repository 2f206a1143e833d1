package netpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

func newTestKernel(t *testing.T) *kernel {
	k, err := newKernel("test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.reset(context.Background())); require.NoError(t, k.close()) })
	return k
}

// has requires that the kernel's table matches a state: chains with their rules and the rejection, sets and maps
// with their elements.
func (k *kernel) has(t *testing.T, s *state) {
	t.Helper()
	conn, err := nftables.New()
	require.NoError(t, err)
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	require.NoError(t, err)
	require.Len(t, chains, 1+len(s.chains))
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		require.NoError(t, err)
		if c.Name == "forward" {
			require.Len(t, rules, 4)
			continue
		}
		require.Contains(t, s.chains, c.Name)
		require.Len(t, rules, len(s.chains[c.Name])+1)
	}
	sizes := map[string]int{"ingress": len(s.ingress), "egress": len(s.egress)}
	both := map[netip.Addr]bool{}
	for _, m := range []map[netip.Addr]string{s.ingress, s.egress} {
		for a := range m {
			both[a] = true
		}
	}
	sizes["self"] = len(both)
	for name, all := range s.addresses {
		sizes[name] = len(all)
	}
	for name, all := range s.endpoints {
		sizes[name] = len(all)
	}
	for name, all := range s.blocks {
		for _, r := range all {
			sizes[name]++
			if r.To != netip.MustParseAddr("255.255.255.255") {
				sizes[name]++
			}
		}
	}
	sets, err := conn.GetSets(k.table)
	require.NoError(t, err)
	found := map[string]int{}
	for _, set := range sets {
		elements, err := conn.GetSetElements(set)
		require.NoError(t, err)
		found[set.Name] = len(elements)
	}
	require.Equal(t, sizes, found)
}

func TestTheKernelHasWhatTheRulesSay(t *testing.T) {
	k := newTestKernel(t)
	a, b, c := netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("10.42.0.3"), netip.MustParseAddr("10.42.0.4")
	first := &state{
		chains: map[string][]Rule{
			"in-1": {{Addresses: "p1", Protocol: unix.IPPROTO_TCP, From: 80, To: 80}, {Blocks: "b1"}},
			"out-1": {
				{Endpoints: "e1"},
				{Blocks: "b1", Protocol: unix.IPPROTO_UDP, From: 1, To: 99},
				{Protocol: unix.IPPROTO_SCTP, To: 65535},
				{},
			},
		},
		addresses: map[string][]netip.Addr{"p1": {a, b}},
		blocks: map[string][]Range{
			"b1": {
				{netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("192.0.1.255")},
				{netip.MustParseAddr("192.0.3.0"), netip.MustParseAddr("255.255.255.255")},
			},
		},
		endpoints: map[string][]Destination{"e1": {{unix.IPPROTO_TCP, netip.AddrPortFrom(b, 8080)}}},
		ingress:   map[netip.Addr]string{a: "in-1"},
		egress:    map[netip.Addr]string{a: "out-1", b: "out-1"},
	}
	require.NoError(t, k.write(t.Context(), first))
	k.has(t, first)
	netns.Listing(t)
	many := []netip.Addr{c}
	for i := range 2000 {
		many = append(many, address(uint64(number(netip.MustParseAddr("10.50.0.0")))+uint64(i)))
	}
	second := &state{
		chains:    map[string][]Rule{"in-1": first.chains["in-1"], "in-2": {}},
		addresses: map[string][]netip.Addr{"p1": many},
		blocks:    first.blocks,
		ingress:   map[netip.Addr]string{a: "in-2", c: "in-1"},
	}
	require.NoError(t, k.write(t.Context(), second))
	k.has(t, second)
	require.NoError(t, k.write(t.Context(), first))
	k.has(t, first)
	// A new process replaces the table of a killed one, whatever its content.
	next, err := newKernel("test")
	require.NoError(t, err)
	require.NoError(t, next.write(t.Context(), second))
	next.has(t, second)
	require.NoError(t, next.close())
	// A change that the kernel rejects leaves nothing behind, and the next change replaces everything.
	broken := &state{chains: map[string][]Rule{"in-1": {}}, ingress: map[netip.Addr]string{a: "in-none"}}
	require.Error(t, k.write(t.Context(), broken))
	require.NoError(t, k.write(t.Context(), first))
	k.has(t, first)
	require.NoError(t, k.write(t.Context(), &state{}))
	k.has(t, &state{})
}

// TestAnswersThatNeverCome checks that a change without an answer ends after a timeout or with its context.
func TestAnswersThatNeverCome(t *testing.T) {
	k := newTestKernel(t)
	deaf := func() {
		require.NoError(t, k.dial())
		require.NoError(t, k.socket.SetBPF([]bpf.RawInstruction{{Op: unix.BPF_RET}}))
	}
	deaf()
	k.patience = time.Millisecond
	require.ErrorIs(t, k.write(t.Context(), &state{}), os.ErrDeadlineExceeded)
	k.patience = flushTimeout
	deaf()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, k.write(ctx, &state{}), os.ErrDeadlineExceeded)
	require.NoError(t, k.write(t.Context(), &state{}))
	k.has(t, &state{})
}

// TestAnswersThatWereNotRead checks that unread answers are not taken for answers to the next change.
func TestAnswersThatWereNotRead(t *testing.T) {
	k := newTestKernel(t)
	many := &state{chains: map[string][]Rule{}}
	for i := range 500 {
		many.chains[fmt.Sprint("in-", i)] = []Rule{{}}
	}
	require.NoError(t, k.socket.SetReadBuffer(1)) // the kernel drops most answers
	k.patience = time.Second
	require.Error(t, k.write(t.Context(), many))
	k.patience = flushTimeout
	broken := &state{
		chains: map[string][]Rule{"in-1": {}}, ingress: map[netip.Addr]string{netip.MustParseAddr("10.42.0.2"): "in-none"},
	}
	require.Error(t, k.write(t.Context(), broken))
	require.NoError(t, k.write(t.Context(), many))
	k.has(t, many)
	k.abandon() // as after a panic
	require.NoError(t, k.write(t.Context(), &state{}))
	k.has(t, &state{})
}

func TestAddressesOfNewPodsCount(t *testing.T) {
	rules := &Rules{Active: true, Chains: map[string][]Rule{"in-1": {}}, Pods: []Pod{
		{Namespace: "n", Name: "old", UID: "old", Address: netip.MustParseAddr("10.42.0.2"), Ingress: "in-1"},
		{Namespace: "n", Name: "new", UID: "new", Address: netip.MustParseAddr("10.42.0.9")},
	}}
	s, written := rules.state(nil)
	require.Equal(t, "in-1", s.ingress[netip.MustParseAddr("10.42.0.2")])
	require.Len(t, written, 2)
	// The address of an ended pod already belongs to another.
	s, written = rules.state(map[typesUID]netip.Addr{"new": netip.MustParseAddr("10.42.0.2")})
	require.Empty(t, s.ingress)
	require.Equal(t, netip.MustParseAddr("10.42.0.2"), written["new"])
	require.True(t, static.IsStatic(&corev1.Pod{ObjectMeta: metaWith("kubernetes.io/config.source", "file")}))
	require.False(t, static.IsStatic(&corev1.Pod{ObjectMeta: metaWith("kubernetes.io/config.source", "api")}))
}
