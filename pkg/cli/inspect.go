package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

func inspectCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show the inside of a Coracle server: its cache, reconcilers, fairness, store and scheduling",
		Long: `Shows the inside of a Coracle server, as it serves it below /debug/coracle/. Only cluster administrators may see that,
unless a role names the paths in its nonResourceURLs.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("there is no %q to inspect; there are cache, reconcilers, fairness, store and schedule", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	add := func(name, short string, print func(raw []byte, out io.Writer) error) {
		sub := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs}
		output := sub.Flags().StringP("output", "o", "", "json, for programs")
		sub.RunE = func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(*output); err != nil {
				return err
			}
			raw, err := inspect(cmd.Context(), flags, name, nil)
			if err != nil {
				return err
			}
			if *output == "json" {
				_, err = streams.Out.Write(raw)
				return err
			}
			return print(raw, streams.Out)
		}
		cmd.AddCommand(sub)
	}
	add("cache", "Objects, bytes, revision and watchers of each kind, the largest first", printed(printCache))
	add("reconcilers", "What each reconciler watches and writes, its queue, and what it cannot reconcile",
		printed(printReconcilers))
	add("fairness", "Seats, queues and busiest flows of each priority level", printed(printFairness))
	add("store", "Size, quota and revisions of the store", printed(printStore))
	cmd.AddCommand(inspectScheduleCommand(flags, streams))
	return cmd
}

func checkOutput(output string) error {
	if output != "" && output != "json" {
		return fmt.Errorf("output %q is not known: leave it out, or use json", output)
	}
	return nil
}

func inspect(ctx context.Context, flags *genericclioptions.ConfigFlags, name string, query url.Values) ([]byte, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	d, err := flags.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	request := d.RESTClient().Get().AbsPath("/debug/coracle/" + name)
	for key, values := range query {
		for _, v := range values {
			request.Param(key, v)
		}
	}
	raw, err := request.DoRaw(ctx)
	var status metav1.Status // the client does not decode a Status from raw requests
	if err != nil && json.Unmarshal(raw, &status) == nil && status.Message != "" {
		return nil, &apierrors.StatusError{ErrStatus: status}
	}
	return raw, err
}

func printed[T any](print func(T, io.Writer) error) func([]byte, io.Writer) error {
	return func(raw []byte, out io.Writer) error {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("could not decode the server's response: %w", err)
		}
		return print(v, out)
	}
}

func printCache(r socket.CacheReport, out io.Writer) error {
	var objects int
	var bytes, encodings int64
	err := command.Table(out, "KIND\tOBJECTS\tBYTES\tENCODED\tREVISION\tWATCHERS\tRING\tCHANGES\tEXPIRED",
		func(line func(...any)) {
			for _, k := range r.Kinds {
				objects, bytes, encodings = objects+k.Objects, bytes+k.ObjectBytes, encodings+k.EncodingBytes
				line(qualified(k.Resource, k.Group), k.Objects, socket.Bytes(k.ObjectBytes), socket.Bytes(k.EncodingBytes),
					k.Revision, k.Watchers,
					fmt.Sprintf("%d/%d", k.Ring, k.RingLimit), k.Changes, k.Expired+k.Refused)
			}
		})
	fmt.Fprintf(out, "\n%s of %s, %s as stored and %s of encodings, at revision %d.\n",
		count.Of(objects, "object"), count.Of(len(r.Kinds), "kind"), socket.Bytes(bytes), socket.Bytes(encodings), r.Revision)
	return err
}

func qualified(resource, group string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}

func printReconcilers(r socket.ReconcilersReport, out io.Writer) error {
	now := time.Now()
	err := command.Table(out, "RECONCILER\tSYNCED\tQUEUED\tDELAYED\tRUNNING\tBACK-OFF\tCRASHES", func(line func(...any)) {
		for _, c := range r.Reconcilers {
			synced := "yes"
			if !c.Synced {
				synced = "no"
			}
			line(c.Name, synced, c.Queued, c.Delayed, fmt.Sprintf("%d/%d", c.Running, c.Workers), c.BackingOff, c.Crashes)
		}
	})
	for _, c := range r.Reconcilers {
		fmt.Fprintf(out, "\n%s\n", c.Name)
		list := func(title string, values []string) {
			if len(values) > 0 {
				fmt.Fprintf(out, "  %-8s  %s\n", title, strings.Join(values, "\n            "))
			}
		}
		list("watches", joined(c.Watches))
		list("reads", joined(c.Reads))
		list("writes", c.Writes)
		for _, f := range c.Failures {
			fmt.Fprintf(out, "  %-8s  %s for %s, %s: %s\n", "failing", f.Object,
				duration.HumanDuration(now.Sub(f.Since)), count.Of(f.Attempts, "attempt"), f.Error)
		}
		if more := c.BackingOff - len(c.Failures); more > 0 {
			fmt.Fprintf(out, "  %-8s  %d more\n", "failing", more)
		}
		if c.LastCrash != "" {
			first, _, _ := strings.Cut(c.LastCrash, "\n")
			fmt.Fprintf(out, "  %-8s  %s\n", "crashed", first)
		}
	}
	return err
}

// joined joins a list on one line and truncates long lists.
func joined(values []string) []string {
	const most = 12
	if len(values) == 0 {
		return nil
	}
	if more := len(values) - most; more > 0 {
		return []string{strings.Join(values[:most], ", ") + fmt.Sprintf(" and %d more (-o json)", more)}
	}
	return []string{strings.Join(values, ", ")}
}

func printFairness(r socket.FairnessReport, out io.Writer) error {
	err := command.Table(out, "PRIORITY LEVEL\tSEATS\tEXECUTING\tWAITING\tDISPATCHED\tREJECTED\tFLOWS",
		func(line func(...any)) {
			for _, l := range r.Levels {
				if l.Exempt {
					line(l.Name, "exempt", "", "", "", "", "")
					continue
				}
				line(l.Name, l.Seats, l.Executing, l.Waiting, l.Dispatched, l.Rejected, l.FlowCount)
			}
		})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(r.Levels, func(l socket.FairnessLevel) bool { return len(l.Flows) > 0 }) {
		_, err = fmt.Fprintln(out, "\nNo flow has requests now. Requests of administrators are exempt.")
		return err
	}
	fmt.Fprintln(out)
	return command.Table(out, "FLOW SCHEMA\tFLOW\tPRIORITY LEVEL\tEXECUTING\tWAITING\tSTREAMS\tBODIES",
		func(line func(...any)) {
			for _, l := range r.Levels {
				for _, f := range l.Flows {
					line(f.Schema, f.Flow, l.Name, f.Executing, f.Waiting, f.Streams, socket.Bytes(int64(f.BodyBytes)))
				}
			}
		})
}

func printStore(r socket.StoreReport, out io.Writer) error {
	for _, row := range [][2]string{
		{"In use", fmt.Sprintf("%s of a quota of %s", socket.Bytes(r.UsedBytes), socket.Bytes(r.QuotaBytes))},
		{"Database", socket.Bytes(r.SizeBytes)},
		{"Disk", fmt.Sprintf("%s free, at least %s needed", socket.Bytes(r.DiskFreeBytes), socket.Bytes(r.DiskMinFreeBytes))},
		{"Revision", fmt.Sprintf("%d, history since %d", r.Revision, r.CompactedRevision)},
		{"Members", fmt.Sprint(r.Members)},
		{"Warning", r.Warning},
	} {
		if row[1] != "" {
			fmt.Fprintf(out, "%-9s  %s\n", row[0], row[1])
		}
	}
	return nil
}
