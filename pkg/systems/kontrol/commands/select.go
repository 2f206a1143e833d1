package commands

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// answered returns the exit code of a question: 2 for an error, 1 for "no".
func answered(yes bool, err error) error {
	switch {
	case err != nil:
		return &command.Exit{Code: 2, Err: err}
	case !yes:
		return &command.Exit{Code: 1}
	}
	return nil
}

// KontrolOptions selects Resources and the output format.
type KontrolOptions struct {
	// Names are the names of Resources; empty means all.
	Names []string
	// Cluster, Namespace, Kind and State filter by cluster, by the object's namespace and kind, and by state;
	// empty means any.
	Cluster, Namespace, Kind, State string
	// Output is wide, json or yaml; empty means a table.
	Output string
}

var kontrolStates = []string{
	string(kontrol.StateSynced), string(kontrol.StateOutOfSync), string(kontrol.StatePendingApplied),
	string(kontrol.StateDrifted),
	string(kontrol.StateConflict), string(kontrol.StateUnreachable), string(kontrol.StateDegraded),
}

func parseState(text string) (string, error) {
	for _, s := range kontrolStates {
		if strings.EqualFold(s, text) {
			return s, nil
		}
	}
	return "", fmt.Errorf("%q is not a state: use one of %s", text, strings.Join(kontrolStates, ", "))
}

func (c *cluster) getResource(ctx context.Context, name string) (*kontrol.Resource, error) {
	r := &kontrol.Resource{}
	err := c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, r)
	if apierrors.IsNotFound(err) {
		if c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, &kontrol.Bundle{}) == nil {
			return nil, fmt.Errorf("there is no resource %s, but a bundle: its name is bundle/%s", name, name)
		}
		return nil, fmt.Errorf("there is no resource %s: `coracle kontrol get` lists them", name)
	}
	return r, err
}

// matching returns the selected Resources, by name.
func (c *cluster) matching(ctx context.Context, o *KontrolOptions) ([]kontrol.Resource, error) {
	if o.State != "" {
		var err error
		if o.State, err = parseState(o.State); err != nil {
			return nil, err
		}
	}
	var out []kontrol.Resource
	for _, name := range o.Names {
		r, err := c.getResource(ctx, name)
		if err != nil {
			return nil, err
		}
		out = append(out, *r)
	}
	if len(o.Names) == 0 {
		list := &ctrl.ListOptions{Limit: command.Page}
		for {
			var some kontrol.ResourceList
			if err := c.Client.List(ctx, &some, list); err != nil {
				return nil, err
			}
			out = append(out, some.Items...)
			if list.Continue = some.Continue; list.Continue == "" {
				break
			}
		}
	}
	var err error
	out = slices.DeleteFunc(out, func(r kontrol.Resource) bool {
		ok, e := c.selects(ctx, o, &r)
		if e != nil {
			err = e
		}
		return !ok
	})
	return out, err
}

func (c *cluster) selects(ctx context.Context, o *KontrolOptions, r *kontrol.Resource) (bool, error) {
	t := kontrol.TargetOf(r)
	if o.Namespace != "" && o.Namespace != t.Namespace || o.Kind != "" && !strings.EqualFold(o.Kind, t.Kind) ||
		o.State != "" && o.State != r.State() {
		return false, nil
	}
	if o.Cluster == "" {
		return true, nil
	}
	names, err := c.clustersOf(ctx, r)
	return slices.Contains(names, o.Cluster), err
}

func (c *cluster) clustersOf(ctx context.Context, r *kontrol.Resource) ([]string, error) {
	if r.Spec.ClusterSelector == nil {
		return []string{r.Spec.ClusterName}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(r.Spec.ClusterSelector)
	if err != nil {
		return nil, err
	}
	var list kontrol.ClusterList
	if err := c.Client.List(ctx, &list, ctrl.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

const resourceHeader = "RESOURCE\tOBJECT\tCLUSTERS\tSTATE\tREVISION?\tMODE?\tAGE?\tMESSAGE"

func resourceLine(r *kontrol.Resource, now time.Time) []any {
	s := &r.Status
	message := ""
	if s.ObservedGeneration == r.Generation {
		message = s.Message
	}
	return []any{
		r.Name, kontrol.TargetOf(r).String(), fmt.Sprintf("%d/%d", s.Clusters.Synced, s.Clusters.Total), r.State(),
		kontrol.RevisionOf(r),
		string(r.Spec.Mode), command.Ago(&r.CreationTimestamp, now), command.Shorten(message),
	}
}

// Resources prints the selected Resources.
func (c *cluster) Resources(ctx context.Context, o KontrolOptions, t command.Terminal) error {
	list, err := c.matching(ctx, &o)
	if err != nil {
		return err
	}
	if o.Output != "" {
		out := &kontrol.ResourceList{Items: list}
		for i := range out.Items {
			out.Items[i].APIVersion, out.Items[i].Kind = kontrol.GroupVersion.String(), "Resource"
			out.Items[i].ManagedFields = nil
		}
		if len(o.Names) == 1 && len(list) == 1 {
			return command.PrintAs(t.Out, o.Output, &out.Items[0])
		}
		out.APIVersion, out.Kind = kontrol.GroupVersion.String(), "ResourceList"
		return command.PrintAs(t.Out, o.Output, out)
	}
	if len(list) == 0 && o.Cluster != "" {
		_, err := fmt.Fprintf(t.Err, "No resources on cluster %s; `coracle kontrol clusters` lists clusters.\n", o.Cluster)
		return err
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(t.Err,
			"No resources. Make one with kubectl apply, or take over an object: coracle kontrol adopt configmap/NAME "+
				"--cluster CLUSTER")
		return err
	}
	now := time.Now()
	return command.Table(t.Out, resourceHeader, func(line func(...any)) {
		for i := range list {
			line(resourceLine(&list[i], now)...)
		}
	})
}

// WatchResources prints a line for each change of a selected Resource, until ctx is done.
func (c *cluster) WatchResources(ctx context.Context, o KontrolOptions, t command.Terminal) error {
	if o.Output != "" {
		return fmt.Errorf("--watch prints lines, not %s", o.Output)
	}
	if o.State != "" {
		var err error
		if o.State, err = parseState(o.State); err != nil {
			return err
		}
	}
	const format = "%-24s  %-36s  %-8s  %-14s  %8s  %s\n"
	fmt.Fprintf(t.Out, format, "RESOURCE", "OBJECT", "CLUSTERS", "STATE", "REVISION", "MESSAGE")
	printed := map[string]string{}
	for ctx.Err() == nil {
		began := time.Now()
		w, err := c.Client.Watch(ctx, &kontrol.ResourceList{})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for event := range w.ResultChan() {
			r, ok := event.Object.(*kontrol.Resource)
			if !ok || len(o.Names) > 0 && !slices.Contains(o.Names, r.Name) {
				continue
			}
			if yes, err := c.selects(ctx, &o, r); err != nil || !yes {
				delete(printed, r.Name)
				continue
			}
			line := resourceLine(r, time.Now())
			if event.Type == "DELETED" {
				line[3], line[7] = "Deleted", ""
			}
			text := fmt.Sprintf(format, line[0], line[1], line[2], line[3], fmt.Sprint(line[4]), line[7])
			if printed[r.Name] != text { // most status updates do not change the line
				fmt.Fprint(t.Out, text)
			}
			if printed[r.Name] = text; event.Type == "DELETED" {
				delete(printed, r.Name)
			}
		}
		w.Stop()
		if time.Since(began) < watchPause { // limits the retries if the server ends watches at once
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// watchPause is the shortest time between the start of two watches.
const watchPause = time.Second
