package commands

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// bundlePrefix marks the names of Bundles in commands that also accept Resources.
const bundlePrefix = bundleKind + "/"

func splitBundles(names []string) (resources, bundles []string) {
	for _, n := range names {
		if b, ok := strings.CutPrefix(n, bundlePrefix); ok {
			bundles = append(bundles, b)
		} else {
			resources = append(resources, n)
		}
	}
	return resources, bundles
}

func (c *cluster) getBundle(ctx context.Context, name string) (*kontrol.Bundle, error) {
	b := &kontrol.Bundle{}
	err := c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, b)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no bundle %s: `coracle kontrol get` lists them", name)
	}
	return b, err
}

// Get prints the selected Bundles and Resources. Bundles are included without names only if there is neither a
// filter nor an output format.
func (c *cluster) Get(ctx context.Context, o KontrolOptions, t command.Terminal) error {
	resources, names := splitBundles(o.Names)
	var bundles []kontrol.Bundle
	switch {
	case len(names) > 0:
		for _, n := range names {
			b, err := c.getBundle(ctx, n)
			if err != nil {
				return err
			}
			bundles = append(bundles, *b)
		}
	case len(o.Names) == 0 && o.Output == "" && o.Cluster == "" && o.Namespace == "" && o.Kind == "" && o.State == "":
		var list kontrol.BundleList
		if err := c.Client.List(ctx, &list); err != nil {
			return err
		}
		bundles = list.Items
	}
	if err := printBundles(bundles, o.Output, t.Out); err != nil || len(names) > 0 && len(resources) == 0 {
		return err
	}
	if o.Names = resources; len(bundles) > 0 {
		fmt.Fprintln(t.Out)
	}
	return c.Resources(ctx, o, t)
}

func printBundles(list []kontrol.Bundle, format string, out io.Writer) error {
	if len(list) == 0 {
		return nil
	}
	if format != "" {
		for i := range list {
			list[i].APIVersion, list[i].Kind, list[i].ManagedFields = kontrol.GroupVersion.String(), "Bundle", nil
		}
		if len(list) == 1 {
			return command.PrintAs(out, format, &list[0])
		}
		return command.PrintAs(out, format, &kontrol.BundleList{
			TypeMeta: metav1.TypeMeta{APIVersion: kontrol.GroupVersion.String(), Kind: "BundleList"}, Items: list,
		})
	}
	now := time.Now()
	return command.Table(out, "BUNDLE\tOBJECTS\tCLUSTERS\tPHASE\tWAVES?\tSOURCE?\tAGE?\tMESSAGE", func(line func(...any)) {
		for i := range list {
			b := &list[i]
			s := &b.Status
			line(b.Name, s.Objects, fmt.Sprintf("%d/%d", s.Clusters.Synced, s.Clusters.Total), b.Phase(), b.WavesDone(),
				b.Spec.Source.String(), command.Ago(&b.CreationTimestamp, now), command.Shorten(s.Message))
		}
	})
}

// Describe prints a Resource or, with the prefix bundle/, a Bundle.
func (c *cluster) Describe(ctx context.Context, name string, out io.Writer) error {
	if bundle, ok := strings.CutPrefix(name, bundlePrefix); ok {
		return c.DescribeBundle(ctx, bundle, out)
	}
	return c.DescribeResource(ctx, name, out)
}

func clustersOf(b *kontrol.Bundle) string {
	if b.Spec.ClusterSelector != nil {
		return "clusters with labels " + metav1.FormatLabelSelector(b.Spec.ClusterSelector)
	}
	return b.Spec.ClusterName
}

// orderOf describes the order in which the clusters get the content.
func orderOf(b *kontrol.Bundle) string {
	if b.Spec.ClusterSelector == nil {
		return ""
	}
	groups := "clusters"
	for i := range b.Spec.Rollout.Order {
		groups += " with " + metav1.FormatLabelSelector(&b.Spec.Rollout.Order[i]) + ", then"
	}
	if groups != "clusters" {
		groups += " the others, each group"
	}
	return groups + " by name; on each cluster one wave after the other"
}

// DescribeBundle prints a Bundle with the progress of its waves and clusters.
func (c *cluster) DescribeBundle(ctx context.Context, name string, out io.Writer) error {
	b, err := c.getBundle(ctx, name)
	if err != nil {
		return err
	}
	s, r := &b.Status, &b.Spec.Rollout
	rollout := fmt.Sprintf("at most %s unavailable, %s on failure, %s for a wave", r.MaxUnavailable,
		strings.ToLower(string(r.OnFailure)), r.HealthTimeout.Duration)
	if r.Approval == kontrol.ApprovalManual {
		rollout += ", after approval"
	}
	for _, row := range [][2]string{
		{"Bundle", b.Name}, {"Source", b.Spec.Source.String()}, {"Artifact", s.Artifact}, {"Clusters", clustersOf(b)},
		{"Rollout", rollout}, {"Order", orderOf(b)}, {"Phase", b.Phase()},
		{"Message", s.Message}, {"Content", s.Content}, {"Approved", s.Approved}, {"Objects", fmt.Sprint(s.Objects)},
		{"Mode", strings.ToLower(string(b.Spec.Mode))}, {"Created", command.Stamp(&b.CreationTimestamp)},
	} {
		if row[1] != "" {
			fmt.Fprint(out, command.Hang(fmt.Sprintf("%-8s  ", row[0]), row[1], command.Width(out)))
		}
	}
	for i := range b.Spec.Windows {
		fmt.Fprintf(out, "%-8s  %s\n", "Window", windowText(&b.Spec.Windows[i]))
	}
	now := time.Now()
	if len(s.Waves) > 0 {
		fmt.Fprintln(out)
		if err := command.Table(out, "WAVE\tOBJECTS\tCLUSTERS", func(line func(...any)) {
			for _, w := range s.Waves {
				line(w.Wave, w.Objects, fmt.Sprintf("%d/%d", w.Clusters, s.Clusters.Total))
			}
		}); err != nil {
			return err
		}
	}
	if len(s.Targets) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return command.Table(out, "CLUSTER\tPHASE\tWAVE\tSINCE\tMESSAGE", func(line func(...any)) {
		for i := range s.Targets {
			t := &s.Targets[i]
			wave, since := "", ""
			if t.Wave != nil {
				wave = fmt.Sprint(*t.Wave)
			}
			if t.Since != nil {
				since = command.Ago(t.Since, now)
			}
			line(t.Name, t.Phase, wave, since, command.Shorten(t.Message))
		}
	})
}

var bundlePhases = []string{
	string(kontrol.BundleSynced), string(kontrol.BundleProgressing), string(kontrol.BundleWaiting),
	string(kontrol.BundlePaused), string(kontrol.BundleFailed), string(kontrol.BundleInvalid), deleted,
}

// Wait waits for Bundles and Resources to reach a state. The result is an Exit: 1 after the timeout.
func (c *cluster) Wait(ctx context.Context, o KontrolOptions, state string, timeout time.Duration,
	t command.Terminal) error {
	resources, bundles := splitBundles(o.Names)
	end := time.Now().Add(timeout)
	for _, name := range bundles {
		if err := c.waitBundle(ctx, name, state, time.Until(end), t); err != nil {
			return err
		}
	}
	if len(bundles) > 0 && len(resources) == 0 {
		return nil
	}
	o.Names = resources
	return c.WaitResources(ctx, o, state, max(time.Until(end), time.Millisecond), t)
}

func (c *cluster) waitBundle(ctx context.Context, name, phase string, timeout time.Duration, t command.Terminal) error {
	known := ""
	for _, p := range bundlePhases {
		if strings.EqualFold(p, phase) {
			known = p
		}
	}
	if known == "" {
		return answered(false,
			fmt.Errorf("%q is not a phase of a bundle: use one of %s", phase, strings.Join(bundlePhases, ", ")))
	}
	limited, cancel := context.WithTimeout(ctx, max(timeout, time.Millisecond))
	defer cancel()
	last, err := c.getBundle(limited, name)
	for err == nil {
		var over bool
		if over, err = watchOne(limited, c, &kontrol.BundleList{}, name, func(b *kontrol.Bundle) (bool, error) {
			switch {
			case b == nil && known == deleted:
				_, err := fmt.Fprintf(t.Out, "bundle %s is deleted\n", name)
				return true, err
			case b == nil:
				return true, fmt.Errorf("bundle %s was deleted", name)
			}
			if last = b; b.Phase() != known {
				t.Progress(fmt.Sprintf("%s on %d of %s: %s", b.Phase(), b.Status.Clusters.Synced,
					count.Of(b.Status.Clusters.Total, "cluster"), b.Status.Message))
				return false, nil
			}
			t.Progress("")
			_, err := fmt.Fprintf(t.Out, "bundle %s is %s (%s on %d of %s)\n", name, known, count.Of(b.Status.Objects, "object"),
				b.Status.Clusters.Synced, count.Of(b.Status.Clusters.Total, "cluster"))
			return true, err
		}); over {
			break
		}
		if limited.Err() != nil && ctx.Err() == nil {
			t.Progress("")
			fmt.Fprintf(t.Err, "bundle %s is %s, not %s: %s\n", name, last.Phase(), known, last.Status.Message)
			return answered(false, nil)
		}
	}
	return answered(true, err)
}
