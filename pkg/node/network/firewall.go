package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Dropper is a chain of another program that may drop packets of pods.
type Dropper struct {
	Family, Table, Chain string
	// Forwards is true for packets between pods and to other machines, false for packets to the node itself.
	Forwards bool
	// Why is the chain's policy or its last rule.
	Why string
}

// String returns the chain as nft names it.
func (d Dropper) String() string {
	return fmt.Sprintf("%s %s %s (%s)", d.Family, d.Table, d.Chain, d.Why)
}

// Droppers returns the chains at the input and forward hooks that drop or reject the packets that none of their rules
// accepts, except for the chains of our own tables, which begin with prefix. To accept a packet, all chains of a hook
// must, so a rule in another table cannot replace one in these.
func Droppers(prefix string) ([]Dropper, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var all []Dropper
	families := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"}
	for _, c := range chains {
		family, known := families[c.Table.Family]
		if !known || c.Hooknum == nil || c.Type != nftables.ChainTypeFilter || strings.HasPrefix(c.Table.Name, prefix+"_") {
			continue
		}
		if *c.Hooknum != *nftables.ChainHookInput && *c.Hooknum != *nftables.ChainHookForward {
			continue
		}
		d := Dropper{family, c.Table.Name, c.Name, *c.Hooknum == *nftables.ChainHookForward, ""}
		if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			d.Why = "policy drop"
		} else if rules, err := conn.GetRules(c.Table, c); err == nil && len(rules) > 0 {
			d.Why = ending(rules[len(rules)-1])
		}
		if d.Why != "" {
			all = append(all, d)
		}
	}
	return all, nil
}

// ending describes a rule that drops or rejects all packets, or returns "".
func ending(r *nftables.Rule) string {
	unconditional := !slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		switch e.(type) {
		case *expr.Counter, *expr.Log, *expr.Reject, *expr.Verdict:
			return false
		}
		return true
	})
	if !unconditional || len(r.Exprs) == 0 {
		return ""
	}
	switch e := r.Exprs[len(r.Exprs)-1].(type) {
	case *expr.Reject:
		return "the last rule rejects"
	case *expr.Verdict:
		if e.Kind == expr.VerdictDrop {
			return "the last rule drops"
		}
	}
	return ""
}
