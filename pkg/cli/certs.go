package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Certs prints the keys and certificates on this machine's disk and, while CAs are being replaced, the progress
// that the server on this machine reports.
func Certs(ctx context.Context, dataDir, runDir string, out io.Writer) error {
	all, err := pki.Inspect(filepath.Join(dataDir, "pki"))
	if err != nil {
		return err
	}
	admin, err := command.AdminCertificate(dataDir)
	if err != nil {
		return err
	}
	if all = append(all, admin...); len(all) == 0 {
		return fmt.Errorf("there are no keys in %s: this machine runs no server, and has not joined one",
			filepath.Join(dataDir, "pki"))
	}
	now := time.Now()
	err = command.Table(out, "NAME\tAGE\tENDS\tRENEWED\tFILE", func(line func(...any)) {
		for _, i := range all {
			age, ends := "", ""
			if !i.Since.IsZero() {
				age = duration.HumanDuration(now.Sub(i.Since))
			}
			switch {
			case i.Until.IsZero():
			case now.After(i.Until):
				ends = "ended " + i.Until.Local().Format(time.DateTime)
			default:
				ends = "in " + duration.HumanDuration(i.Until.Sub(now))
			}
			line(i.Name, age, ends, i.Renewal, i.File)
		}
	})
	if err == nil {
		_, err = fmt.Fprintln(out,
			"\nOther certificates are only in memory. They are valid for a year, and renewed before they expire and at each "+
				"start.")
	}
	if err != nil || !slices.ContainsFunc(all, pki.Item.Replaced) {
		return err
	}
	if _, err := os.Stat(filepath.Join(dataDir, command.Kubeconfig)); err != nil {
		_, err = fmt.Fprintln(out,
			"\nThe API's authority is being replaced. This machine trusts both, until the server says otherwise.")
		return err
	}
	state, err := socket.NewClient(runDir).Authorities(ctx)
	if errors.Is(err, socket.ErrNotRunning) {
		_, err = fmt.Fprintln(out,
			"\nAuthorities are being replaced. The server is not running: who still depends on the old ones is unknown.")
		return err
	}
	if err != nil {
		return err
	}
	return printReplacement(state, out)
}

const mostPrinted = 100

func printReplacement(s socket.Authorities, out io.Writer) error {
	var names []string
	for _, a := range s.List {
		if a.Replaces != nil {
			names = append(names, a.Name)
		}
	}
	fmt.Fprintf(out, "\nBeing replaced: %s. Both old and new are trusted.\n", strings.Join(names, ", "))
	for _, b := range s.Behind[:min(len(s.Behind), mostPrinted)] {
		fmt.Fprintf(out, "  %s\n", b)
	}
	if more := len(s.Behind) - mostPrinted; more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
	if s.Pods > 0 {
		fmt.Fprintf(out,
			"  Started before: %s. If their programs read the API's authority only once, restart them first.\n",
			count.Of(s.Pods, "running pod"))
	}
	end := "No client is known to depend on the old ones."
	if slices.ContainsFunc(s.Behind, func(b socket.Behind) bool { return b.Node != "" }) {
		end = "Nodes follow within seconds if they run."
	} else if len(s.Behind) > 0 {
		end = "All nodes have followed."
	}
	_, err := fmt.Fprintln(out, end+" `coracle certs rotate --ca --finish` ends the trust in the old ones.")
	return err
}

// RotateAuthorities asks the server on this machine to replace the named CAs, or all.
func RotateAuthorities(ctx context.Context, runDir string, names []string, out io.Writer) error {
	state, err := socket.NewClient(runDir).ReplaceAuthorities(ctx, names)
	if err != nil {
		return err
	}
	fmt.Fprintln(out,
		"Certificates are issued by the new authorities from now on, and the admin kubeconfig was updated.\n"+
			"Join tokens made before work until the replacement is finished.")
	return printReplacement(state, out)
}

// FinishAuthorities asks the server on this machine to stop trusting the replaced CAs.
func FinishAuthorities(ctx context.Context, runDir string, names []string, force bool, out io.Writer) error {
	state, err := socket.NewClient(runDir).FinishAuthorities(ctx, names, force)
	if err != nil {
		return err
	}
	fmt.Fprintln(out,
		"The old authorities are no longer trusted, and neither are certificates, kubeconfigs and join tokens of theirs.")
	if state.Pods > 0 {
		fmt.Fprintf(out,
			"Started before the API's authority was replaced: %s. Restart those whose programs cannot reach the API now.\n",
			count.Of(state.Pods, "running pod"))
	}
	if state.Replacing {
		return printReplacement(state, out)
	}
	return nil
}

// RotateServiceAccountKey asks the server on this machine to sign service account tokens with a new key.
func RotateServiceAccountKey(ctx context.Context, runDir string, overlap time.Duration, out io.Writer) error {
	if err := socket.NewClient(runDir).RotateServiceAccountKey(ctx, overlap); err != nil {
		return err
	}
	until := "are invalid now"
	if overlap > 0 {
		until = "remain valid for another " + duration.HumanDuration(overlap)
	}
	_, err := fmt.Fprintf(out, "Service account tokens are signed with a new key. Those of the earlier one %s.\n", until)
	return err
}
