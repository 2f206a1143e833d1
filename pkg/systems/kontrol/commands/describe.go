package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
)

// statesOf returns a Resource's records by cluster: for the clusters that it targets, and for those it was applied
// to before.
func (c *cluster) statesOf(ctx context.Context,
	r *kontrol.Resource) (clusters []string, applied map[string]*kontrol.Applied, current map[string]*kontrol.Current,
	err error) {
	if clusters, err = c.clustersOf(ctx, r); err != nil {
		return nil, nil, nil, err
	}
	var a kontrol.AppliedStateList
	var n kontrol.CurrentStateList
	of := ctrl.MatchingFields{kontrol.FieldResource: r.Name}
	if err := c.Client.List(ctx, &a, of); err != nil {
		return nil, nil, nil, err
	}
	if err := c.Client.List(ctx, &n, of); err != nil {
		return nil, nil, nil, err
	}
	applied, current = map[string]*kontrol.Applied{}, map[string]*kontrol.Current{}
	for i := range a.Items {
		if s := &a.Items[i].State; s.Resource == r.Name && s.ResourceUID == string(r.UID) {
			applied[s.Cluster] = s
			clusters = append(clusters, s.Cluster)
		}
	}
	for i := range n.Items {
		if s := &n.Items[i].State; s.Resource == r.Name && s.ResourceUID == string(r.UID) {
			current[s.Cluster] = s
			clusters = append(clusters, s.Cluster)
		}
	}
	slices.Sort(clusters)
	return slices.Compact(clusters), applied, current, nil
}

func (c *cluster) getCluster(ctx context.Context, name string) (*kontrol.Cluster, error) {
	k := &kontrol.Cluster{}
	switch err := c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, k); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no cluster %s: `coracle kontrol clusters` lists them", name)
	case err != nil:
		return nil, err
	}
	return k, nil
}

// DescribeResource prints one Resource with its applied and current state, and the drift, of each cluster.
func (c *cluster) DescribeResource(ctx context.Context, name string, out io.Writer) error {
	r, err := c.getResource(ctx, name)
	if err != nil {
		return err
	}
	clusters, applied, current, err := c.statesOf(ctx, r)
	if err != nil {
		return err
	}
	for _, row := range describeSpec(r) {
		if row[1] != "" {
			fmt.Fprint(out, command.Hang(fmt.Sprintf("%-10s  ", row[0]), row[1], command.Width(out)))
		}
	}
	fmt.Fprintln(out)
	now := time.Now()
	var failed error
	err = command.Table(out,
		"CLUSTER\tSTATE\tAPPLIED\tREVISION\tGENERATION\tCURRENT\tREVISION\tGENERATION\tDRIFT\tCORRECTED\tMESSAGE",
		func(line func(...any)) {
			for _, name := range clusters {
				k := &kontrol.Cluster{}
				if err := c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, k); err != nil {
					if k = nil; !apierrors.IsNotFound(err) { // state.Of knows clusters that were removed
						failed = err
					}
				}
				st, why := state.Of(state.Input{Resource: r, Cluster: k, Applied: applied[name], Current: current[name]})
				cells := []any{name, st, "never", "", "", "unseen", "", "", "", "", command.Shorten(why)}
				if a := applied[name]; a != nil {
					cells[2], cells[3], cells[4], cells[9] = string(a.Status), a.Revision, a.Generation, a.Corrections
					if a.Reason != "" {
						cells[2] = string(a.Status) + ": " + a.Reason
					}
				}
				if n := current[name]; n != nil {
					cells[5], cells[6], cells[7], cells[8] = string(n.Health), n.Revision, n.Generation, n.DriftCount
				}
				line(cells...)
			}
		})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	var drifts []Drift
	for _, name := range clusters {
		drifts = append(drifts, driftsOf(current[name])...)
	}
	if len(drifts) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return driftTable(out, drifts, now)
}

func describeSpec(r *kontrol.Resource) [][2]string {
	target := r.Spec.ClusterName
	if r.Spec.ClusterSelector != nil {
		target = "clusters with labels " + metav1.FormatLabelSelector(r.Spec.ClusterSelector)
	}
	policy := map[kontrol.DeletionPolicy]string{
		kontrol.DeletionDelete: "the object is deleted with the resource",
		kontrol.DeletionOrphan: "the object outlives the resource",
	}
	rows := [][2]string{
		{"Resource", r.Name}, {"Object", kontrol.TargetOf(r).String()}, {"ID", fmt.Sprint(r.Status.ID)}, {"Clusters", target},
		{"State", r.State()}, {"Message", r.Status.Message},
		{"Revision", fmt.Sprintf("%d (generation %d)", kontrol.RevisionOf(r), r.Generation)},
		{"Mode", string(r.Spec.Mode)}, {"Deletion", policy[r.Spec.DeletionPolicy]},
		{"Created", command.Stamp(&r.CreationTimestamp)},
		{"Depends on", strings.Join(r.Spec.DependsOn, ", ")},
	}
	if r.Spec.Suspend {
		rows = append(rows, [2]string{"Suspended", "nothing is applied"})
	}
	for i := range r.Spec.Windows {
		rows = append(rows, [2]string{"Window", windowText(&r.Spec.Windows[i])})
	}
	if r.Spec.Approval == kontrol.ApprovalManual {
		approved := "the present generation is not approved"
		if r.Status.Approved == r.Generation {
			approved = "the present generation is approved"
		}
		rows = append(rows, [2]string{"Approval", approved})
	}
	if i := r.Spec.Ignore; i != nil {
		rows = append(rows, [2]string{"Ignored", strings.Join(slices.Concat(i.Fields, i.Managers), ", ")})
	}
	return rows
}

func windowText(w *kontrol.SyncWindow) string {
	return strings.ToLower(string(w.Kind)) + " " + w.String()
}

// Drift is a field that another field manager changed on a cluster.
type Drift struct {
	Resource string `json:"resource"`
	Cluster  string `json:"cluster"`
	Object   string `json:"object"`
	kontrol.Drift
}

func driftsOf(n *kontrol.Current) (out []Drift) {
	if n == nil {
		return nil
	}
	for _, d := range n.Drift {
		out = append(out, Drift{n.Resource, n.Cluster, n.Target.String(), d})
	}
	if more := int(n.DriftCount) - len(n.Drift); more > 0 && len(n.Drift) > 0 {
		out = append(out, Drift{
			n.Resource,
			n.Cluster,
			n.Target.String(),
			kontrol.Drift{Path: fmt.Sprintf("and %d more", more), FirstSeen: n.Drift[0].FirstSeen},
		})
	}
	return out
}

func driftTable(out io.Writer, list []Drift, now time.Time) error {
	return command.Table(out, "RESOURCE\tCLUSTER\tFIELD\tCHANGE\tDESIRED\tACTUAL\tBY\tSEEN", func(line func(...any)) {
		for _, d := range list {
			field := cmp.Or(d.Path, d.Object)
			seen := metav1.NewTime(d.FirstSeen.Time)
			line(d.Resource, d.Cluster, field, strings.ToLower(string(d.Type)), command.Shorten(d.Desired),
				command.Shorten(d.Actual), d.Manager, command.Ago(&seen, now))
		}
	})
}

// Drift prints the drift of the selected Resources. The result is an Exit: 1 if there is any.
func (c *cluster) Drift(ctx context.Context, o KontrolOptions, t command.Terminal) error {
	none, err := c.drift(ctx, o, t)
	return answered(none, err)
}

func (c *cluster) drift(ctx context.Context, o KontrolOptions, t command.Terminal) (none bool, err error) {
	cluster := o.Cluster
	o.Cluster = ""
	resources, err := c.matching(ctx, &o)
	if err != nil {
		return false, err
	}
	selected := map[string]string{}
	for i := range resources {
		selected[resources[i].Name] = string(resources[i].UID)
	}
	list := []Drift{}
	options := &ctrl.ListOptions{Limit: command.Page}
	for {
		var some kontrol.CurrentStateList
		if err := c.Client.List(ctx, &some, options); err != nil {
			return false, err
		}
		for i := range some.Items {
			s := &some.Items[i].State
			if uid, ok := selected[s.Resource]; ok && uid == s.ResourceUID && (cluster == "" || cluster == s.Cluster) {
				list = append(list, driftsOf(s)...)
			}
		}
		if options.Continue = some.Continue; options.Continue == "" {
			break
		}
	}
	switch {
	case o.Output != "":
		err = command.PrintAs(t.Out, o.Output, list)
	case len(list) == 0:
		var away []string
		if away, err = c.away(ctx, cluster); err == nil && len(away) > 0 {
			_, err = fmt.Fprintf(t.Err, "No drift is known. These clusters do not answer: %s.\n",
				command.Shorten(strings.Join(away, ", ")))
		} else if err == nil {
			_, err = fmt.Fprintln(t.Err, "No drift.")
		}
	default:
		err = driftTable(t.Out, list, time.Now())
	}
	return len(list) == 0, err
}

// away returns the names of the clusters that do not answer, or of one of them.
func (c *cluster) away(ctx context.Context, name string) (names []string, err error) {
	var all kontrol.ClusterList
	if err := c.Client.List(ctx, &all); err != nil {
		return nil, err
	}
	for i := range all.Items {
		k := &all.Items[i]
		if (name == "" || k.Name == name) && !meta.IsStatusConditionTrue(k.Status.Conditions, kontrol.ConditionReady) {
			names = append(names, k.Name)
		}
	}
	return names, nil
}
