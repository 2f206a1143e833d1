package commands

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
)

// DiffOptions are the options of `coracle kontrol diff`.
type DiffOptions struct {
	Name string
	// Cluster is the cluster to compare; empty means all that the Resource targets.
	Cluster string
	// Revision, if above 0, compares the content at that revision with the current content, instead of the objects
	// on clusters.
	Revision int64
}

// Diff prints what applying a Resource would change on its clusters, or what changed since a revision. The result
// is an Exit: 1 if there are differences.
func (c *cluster) Diff(ctx context.Context, o DiffOptions, t command.Terminal) error {
	same, err := c.diff(ctx, o, t)
	return answered(same, err)
}

func (c *cluster) diff(ctx context.Context, o DiffOptions, t command.Terminal) (same bool, err error) {
	r, err := c.getResource(ctx, o.Name)
	if err != nil {
		return false, err
	}
	if o.Revision > 0 {
		if o.Cluster != "" {
			return false, errors.New("give either --revision or --cluster")
		}
		present := revisions(r)[0]
		if o.Revision == present.Revision && len(r.Status.History) == 0 {
			return true, nil
		}
		from, err := former(r, o.Revision, 0)
		if err != nil && o.Revision != present.Revision {
			return false, err
		} else if err != nil {
			return true, nil
		}
		return diffRevisions(r, from, &present, t.Out)
	}
	names, err := c.clustersOf(ctx, r)
	if err != nil {
		return false, err
	}
	if o.Cluster != "" {
		names = []string{o.Cluster}
	}
	same = true
	var failed []error
	for _, name := range names {
		equal, err := c.diffCluster(ctx, r, name, t)
		if err != nil {
			failed = append(failed, fmt.Errorf("cluster %s: %w", name, err))
		}
		same = same && equal
	}
	return same, errors.Join(failed...)
}

func diffRevisions(r *kontrol.Resource, from, to *Revision, out io.Writer) (same bool, err error) {
	return printDiff(out, fmt.Sprintf("%s revision %d", r.Name, from.Revision),
		fmt.Sprintf("%s revision %d", r.Name, to.Revision),
		from.content(), to.content())
}

// diffCluster prints what applying a Resource would change on a cluster. It asks the cluster by a dry run, or uses
// the last CurrentState if the cluster cannot be reached.
func (c *cluster) diffCluster(ctx context.Context, r *kontrol.Resource, cluster string,
	t command.Terminal) (same bool, err error) {
	client, err := c.connectTo(ctx, cluster)
	if err != nil {
		return false, err
	}
	k, err := c.getCluster(ctx, cluster)
	if err != nil {
		return false, err
	}
	raw, err := placement.Render(r, k)
	if err != nil {
		return false, err
	}
	live, applied, err := dryRun(ctx, client, r, object.Parse(raw))
	if err != nil {
		if !unreachable(err) {
			return false, err
		}
		fmt.Fprintf(t.Err, "cluster %s cannot be reached: %v\n", cluster, err)
		if live, applied, err = c.lastSeen(ctx, r, cluster, object.Parse(raw)); err != nil {
			return false, err
		}
		fmt.Fprintln(t.Err, "the resource is compared with what was seen there last")
	}
	return printDiff(t.Out, cluster+" "+kontrol.TargetOf(r).String(),
		fmt.Sprintf("%s revision %d", r.Name, kontrol.RevisionOf(r)), readable(live), readable(applied))
}

// unreachable reports whether an error is not a response of the cluster itself.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	return err != nil && !meta.IsNoMatchError(err) && (!errors.As(err, &status) || apierrors.IsServiceUnavailable(err))
}

// dryRun returns the current object on a cluster (nil if it does not exist), and the object after an apply.
func dryRun(ctx context.Context, client ctrl.Client, r *kontrol.Resource,
	template map[string]any) (live, applied map[string]any, err error) {
	ctx, cancel := context.WithTimeout(ctx, targetPatience)
	defer cancel()
	now := &unstructured.Unstructured{Object: template}
	now = now.DeepCopy()
	err = client.Get(ctx, ctrl.ObjectKeyFromObject(now), now)
	switch {
	case ctrl.IgnoreNotFound(err) != nil:
		return nil, nil, err
	case err == nil:
		live = now.Object
		template = object.NewIgnored(r.Spec.Ignore).Cut(template, now.GetManagedFields())
	}
	raw, err := json.Marshal(template)
	if err != nil {
		return nil, nil, err
	}
	then := (&unstructured.Unstructured{Object: template}).DeepCopy()
	err = client.Patch(ctx, then, ctrl.RawPatch(types.ApplyPatchType, raw), ctrl.DryRunAll, ctrl.ForceOwnership,
		ctrl.FieldOwner(kontrol.FieldManager))
	return live, then.Object, err
}

// lastSeen returns the recorded object of a cluster, reduced to the fields of the Resource, and the Resource's
// object.
func (c *cluster) lastSeen(ctx context.Context, r *kontrol.Resource, cluster string,
	template map[string]any) (live, applied map[string]any, err error) {
	s := &kontrol.CurrentState{}
	if err := c.Client.Get(ctx, ctrl.ObjectKey{Name: kontrol.StateName(r.Name, cluster)}, s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil, errors.New("nothing was seen there yet")
		}
		return nil, nil, err
	}
	template = object.NewIgnored(r.Spec.Ignore).Cut(template, nil) // managed fields are not recorded
	if !s.State.Present {
		return nil, template, nil
	}
	live, _ = like(readable(object.Parse(s.State.Object.Raw)), readable(template)).(map[string]any)
	return live, template, nil
}

// like returns the part of v that shape has as well. Elements of lists match by their name, or else by their
// index.
func like(v, shape any) any {
	switch shape := shape.(type) {
	case map[string]any:
		from, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := map[string]any{}
		for k, s := range shape {
			if has, ok := from[k]; ok {
				out[k] = like(has, s)
			}
		}
		return out
	case []any:
		from, ok := v.([]any)
		if !ok || len(from) != len(shape) {
			return v
		}
		out := make([]any, len(from))
		for i := range from {
			out[i] = like(from[i], shape[i])
			for _, s := range shape {
				if a, b := nameIn(from[i]), nameIn(s); a != "" && a == b {
					out[i] = like(from[i], s)
				}
			}
		}
		return out
	}
	return v
}

func nameIn(v any) string {
	m, _ := v.(map[string]any)
	name, _ := m["name"].(string)
	return name
}

// serverMeta is the metadata that the API server sets.
var serverMeta = []string{
	"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink", "deletionTimestamp",
	"deletionGracePeriodSeconds",
}

// lastApplied is the annotation in which kubectl repeats the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// readable returns an object without the fields that API servers and Kontrol add. Values of Secrets are hashed.
func readable(o map[string]any) map[string]any {
	if o == nil {
		return nil
	}
	o = runtime.DeepCopyJSON(o)
	delete(o, "status")
	if m, ok := o["metadata"].(map[string]any); ok {
		for _, k := range serverMeta {
			delete(m, k)
		}
		for _, k := range []string{"labels", "annotations"} {
			values, _ := m[k].(map[string]any)
			for key := range values {
				if strings.HasPrefix(key, "kontrol/") || key == lastApplied {
					delete(values, key)
				}
			}
			if len(values) == 0 {
				delete(m, k)
			}
		}
	}
	if object.IsSecret(o) {
		hideValues(o)
	}
	return o
}

// hideValues replaces the values of a Secret by the same hashes that the records have.
func hideValues(o map[string]any) {
	data, _ := o["data"].(map[string]any)
	if text, ok := o["stringData"].(map[string]any); ok {
		if data == nil {
			data = map[string]any{}
		}
		for k, v := range text {
			data[k] = base64.StdEncoding.EncodeToString(fmt.Append(nil, v))
		}
		delete(o, "stringData")
		o["data"] = data
	}
	for k, v := range data {
		if text, ok := v.(string); !ok || !strings.HasPrefix(text, "sha256:") {
			sum := sha256.Sum256(fmt.Append(nil, v))
			data[k] = "sha256:" + hex.EncodeToString(sum[:8])
		}
	}
}

// printDiff prints a unified diff of the YAML of two objects; nil is an object that does not exist.
func printDiff(out io.Writer, fromName, toName string, from, to map[string]any) (same bool, err error) {
	if reflect.DeepEqual(from, to) {
		return true, nil
	}
	text := func(o map[string]any) []string {
		if o == nil {
			return nil
		}
		data, e := yaml.Marshal(o)
		err = errors.Join(err, e)
		return difflib.SplitLines(strings.TrimSuffix(string(data), "\n"))
	}
	d := difflib.UnifiedDiff{A: text(from), B: text(to), FromFile: fromName, ToFile: toName, Context: 3}
	if err != nil {
		return false, err
	}
	return false, difflib.WriteUnifiedDiff(out, d)
}
