package proxy

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/nftables"
)

const dumped = 1000

// Dump writes the nftables tables whose names begin with prefix. It is for debugging on machines without nft.
func Dump(w io.Writer, prefix string) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	var errs []error
	for _, t := range tables {
		if strings.HasPrefix(t.Name, prefix) {
			errs = append(errs, dumpTable(w, conn, t))
		}
	}
	return errors.Join(errs...)
}

func dumpTable(w io.Writer, conn *nftables.Conn, t *nftables.Table) error {
	fmt.Fprintf(w, "table %s (family %d)\n", t.Name, t.Family)
	sets, err := conn.GetSets(t)
	if err != nil {
		return fmt.Errorf("list the sets of %s: %w", t.Name, err)
	}
	for _, s := range sets {
		elements, err := conn.GetSetElements(s)
		if err != nil {
			return fmt.Errorf("list the elements of %s: %w", s.Name, err)
		}
		fmt.Fprintf(w, "  set %s (%s): %d elements\n", s.Name, s.KeyType.Name, len(elements))
		for _, e := range elements[:min(len(elements), dumped)] {
			value := ""
			if e.VerdictData != nil {
				value = " -> " + e.VerdictData.Chain
			} else if len(e.Val) > 0 {
				value = fmt.Sprintf(" -> %x", e.Val)
			}
			if e.Comment != "" {
				value += " # " + e.Comment
			}
			fmt.Fprintf(w, "    %x%s\n", e.Key, value)
		}
		if more := len(elements) - dumped; more > 0 {
			fmt.Fprintf(w, "    and %d more\n", more)
		}
	}
	chains, err := conn.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Name != t.Name {
			continue
		}
		fmt.Fprintf(w, "  chain %s", c.Name)
		if c.Hooknum != nil && c.Priority != nil {
			fmt.Fprintf(w, " (%s, hook %d, priority %d)", c.Type, *c.Hooknum, *c.Priority)
		}
		fmt.Fprintln(w)
		rules, err := conn.GetRules(t, c)
		if err != nil {
			fmt.Fprintf(w, "    (cannot be decoded: %v)\n", err)
		}
		for _, r := range rules {
			var parts []string
			for _, e := range r.Exprs {
				parts = append(parts,
					strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr."))+strings.TrimPrefix(fmt.Sprintf("%+v", e), "&"))
			}
			fmt.Fprintf(w, "    %s\n", strings.Join(parts, " "))
		}
	}
	return nil
}
