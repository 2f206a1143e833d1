package network

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// dockerChain is Docker's chain for other programs' rules, called from FORWARD. While Docker runs, the policy of
// FORWARD is drop for all packets that the machine forwards (docs.docker.com, "Packet filtering and firewalls").
const dockerTable, dockerChain = "filter", "DOCKER-USER"

// AcceptInDocker adds rules to Docker's chain DOCKER-USER that accept packets from and to pods. It does nothing without
// that chain, or if the rules are there. Reset removes them. Rules of iptables-legacy are not in nftables: there it
// finds no chain.
//
// Without valid pods it removes the rules.
func AcceptInDocker(prefix string, pods netip.Prefix) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: dockerTable}
	chain := &nftables.Chain{Table: table, Name: dockerChain}
	rules, err := conn.GetRules(table, chain)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the rules of Docker's chain %s: %w", dockerChain, err)
	}
	owner := tableName(prefix) + " " // of all clusters that this prefix had
	comment := userdata.AppendString(nil, userdata.TypeComment, owner+"pods "+pods.String())
	present := 0
	for _, r := range rules {
		if bytes.Equal(r.UserData, comment) {
			present++
		}
	}
	if present == 2 {
		return nil
	}
	for _, r := range rules {
		if bytes.Contains(r.UserData, []byte(owner)) {
			if err := conn.DelRule(r); err != nil {
				return err
			}
		}
	}
	if pods.IsValid() {
		for _, f := range []field{addrSrc, addrDst} {
			accept := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}}
			r := &nftables.Rule{
				Table: table, Chain: chain, UserData: comment, Exprs: slices.Concat(inPrefix(f, pods), accept),
			}
			if n := len(rules); n > 0 && returns(rules[n-1]) { // of Docker before release 28
				r.Position = rules[n-1].Handle
				conn.InsertRule(r)
			} else {
				conn.AddRule(r)
			}
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) { // Docker removed the chain, or a rule
		return fmt.Errorf("accept packets of pods in Docker's chain %s: %w", dockerChain, err)
	}
	return nil
}

// besideDocker reports whether Docker has run since the machine was started.
func besideDocker() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	all, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("list chains of nftables: %w", err)
	}
	return slices.ContainsFunc(all, func(c *nftables.Chain) bool {
		return c.Table.Name == dockerTable && c.Name == dockerChain
	}), nil
}

// returns reports whether no rule after r is reached.
func returns(r *nftables.Rule) bool {
	return !slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		v, verdict := e.(*expr.Verdict)
		_, counter := e.(*expr.Counter)
		return !counter && (!verdict || v.Kind != expr.VerdictReturn)
	})
}
