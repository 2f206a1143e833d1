package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/artifact"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
)

// PushOptions are the options of `coracle kontrol push`.
type PushOptions struct {
	// Dir is the directory of the files. Name is the Bundle's name; empty means the directory's.
	Dir, Name string
	// Cluster or Selector sets the Bundle's clusters; empty leaves them unchanged.
	Cluster, Selector string
	// Namespace is set in namespaced objects that name none; empty means that they are an error.
	Namespace string
	// Artifact is the reference to push the files to; empty stores the files in the Bundle itself.
	Artifact string
	// Credentials is a Docker configuration with the registry's credentials; empty means none.
	Credentials string
	// DryRun prints what would change, and changes nothing.
	DryRun bool
}

// Push creates or changes a Bundle from the files of a directory.
func (c *cluster) Push(ctx context.Context, o PushOptions, t command.Terminal) error {
	files, objects, err := c.pushed(&o)
	if err != nil {
		return err
	}
	b, err := c.getBundleOrNew(ctx, &o, t)
	if err != nil {
		return err
	}
	switch text := bundle.Inline(files); {
	case o.Artifact != "" && o.DryRun:
		b.Spec.Source = kontrol.BundleSource{Artifact: &kontrol.Artifact{Reference: o.Artifact}}
	case o.Artifact != "":
		if err := c.pushArtifact(ctx, &o, files, b, t); err != nil {
			return err
		}
	case len(text) > kontrol.MaxInline:
		return fmt.Errorf("the files have %d bytes, a Bundle itself can have %d: push them to a registry with --artifact "+
			"HOST/PATH:TAG", len(text), kontrol.MaxInline)
	default:
		b.Spec.Source = kontrol.BundleSource{Inline: text}
	}
	waves := map[int]bool{}
	for i := range objects {
		waves[objects[i].Wave] = true
	}
	what := count.Of(len(objects), "object") + " in " + count.Of(len(waves), "wave")
	if o.DryRun {
		return c.previewPush(ctx, b, objects, what, t)
	}
	verb := "changed"
	if b.ResourceVersion == "" {
		verb, err = "created", c.Client.Create(ctx, b)
	} else {
		was := b.Generation
		if err = c.Client.Update(ctx, b); err == nil && b.Generation == was {
			verb = "unchanged"
		}
	}
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(t.Out, "bundle %s %s: %s\n", b.Name, verb, what); err != nil || verb != "created" {
		return err
	}
	if err := c.someCluster(ctx, b); err != nil { // the bundle exists, so the command has succeeded
		fmt.Fprintf(t.Err, "Note: %v: the objects are brought to it when it is added with `coracle kontrol clusters add`\n",
			err)
	}
	return nil
}

func (c *cluster) pushed(o *PushOptions) ([]bundle.File, []bundle.Object, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(dir) // symlinks cannot leave it
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	o.Name = cmp.Or(o.Name, strings.ToLower(filepath.Base(dir)))
	files, err := bundle.ReadDir(root.FS())
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.Dir, err)
	}
	scopeOf := c.scopes()
	if o.Namespace != "" {
		namespaced := func(group, kind string) bool {
			namespaced, _ := scopeOf(group, kind)
			return namespaced
		}
		if files, err = bundle.InNamespace(files, o.Namespace, namespaced); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", o.Dir, err)
		}
	}
	objects, err := bundle.Parse(files)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.Dir, err)
	}
	for i := range objects { // kinds that only the hub knows
		o := &objects[i]
		if namespaced, known := scopeOf(o.Group(), o.Kind); known {
			if err := bundle.CheckScope(o.Target, namespaced); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", filepath.Join(dir, o.From), err)
			}
		}
	}
	return files, objects, nil
}

// scopes returns a function that reports whether objects of a kind are namespaced, if this program or the hub knows the
// kind. It connects to the hub for the first kind that is not Kubernetes' own.
func (c *cluster) scopes() func(group, kind string) (namespaced, known bool) {
	hub := sync.OnceValues(func() (ctrl.Client, error) { return c.clientFor(c.REST) })
	return func(group, kind string) (namespaced, known bool) {
		if namespaced, known := kontrol.ScopeOf(group, kind); known {
			return namespaced, true
		}
		client, err := hub()
		if err != nil {
			return false, false
		}
		mapping, err := client.RESTMapper().RESTMapping(schema.GroupKind{Group: group, Kind: kind})
		if err != nil {
			return false, false
		}
		return mapping.Scope.Name() == meta.RESTScopeNameNamespace, true
	}
}

func (c *cluster) getBundleOrNew(ctx context.Context, o *PushOptions, t command.Terminal) (*kontrol.Bundle, error) {
	if o.Cluster != "" && o.Selector != "" {
		return nil, errors.New("give either --cluster or --selector")
	}
	b := &kontrol.Bundle{}
	err := c.Client.Get(ctx, ctrl.ObjectKey{Name: o.Name}, b)
	if ctrl.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if apierrors.IsNotFound(err) {
		if o.Cluster == "" && o.Selector == "" {
			return nil, fmt.Errorf("there is no bundle %s yet: choose its clusters with --cluster NAME or --selector "+
				"KEY=VALUE", o.Name)
		}
		b = &kontrol.Bundle{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
	}
	was := clustersOf(b)
	switch {
	case o.Cluster != "":
		b.Spec.ClusterName, b.Spec.ClusterSelector = o.Cluster, nil
	case o.Selector != "":
		s, err := metav1.ParseToLabelSelector(o.Selector)
		if err != nil {
			return nil, fmt.Errorf("--selector: %w", err)
		}
		b.Spec.ClusterName, b.Spec.ClusterSelector = "", s
	}
	if now := clustersOf(b); b.ResourceVersion != "" && now != was {
		if err := c.someCluster(ctx, b); err != nil {
			return nil, fmt.Errorf("%w: the objects of bundle %s would be deleted from %s; `coracle kontrol clusters` lists "+
				"the clusters and their labels", err, b.Name, was)
		}
		fmt.Fprintf(t.Err, "bundle %s changes its clusters from %s to %s: its objects are deleted from clusters that it "+
			"leaves\n", b.Name, was, now)
	}
	return b, nil
}

// someCluster returns an error if a Bundle is for no cluster that exists, as after a mistyped name.
func (c *cluster) someCluster(ctx context.Context, b *kontrol.Bundle) error {
	if name := b.Spec.ClusterName; name != "" {
		err := c.Client.Get(ctx, ctrl.ObjectKey{Name: name}, &kontrol.Cluster{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no cluster %s", name)
		}
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.ClusterSelector)
	if err != nil {
		return err
	}
	var list kontrol.ClusterList
	err = c.Client.List(ctx, &list, ctrl.MatchingLabelsSelector{Selector: selector}, ctrl.Limit(1))
	if err == nil && len(list.Items) == 0 {
		err = fmt.Errorf("no cluster has the labels %s", selector)
	}
	return err
}

// pushArtifact pushes the files to the registry, and sets their digest as the Bundle's source.
func (c *cluster) pushArtifact(ctx context.Context, o *PushOptions, files []bundle.File, b *kontrol.Bundle,
	t command.Terminal) error {
	if strings.Contains(o.Artifact, "@") {
		return errors.New("--artifact needs a tag: the push computes the digest")
	}
	var credentials artifact.Credentials
	if o.Credentials != "" {
		data, err := bounded.Configured(o.Credentials, 1<<20)
		if err != nil {
			return err
		}
		if credentials, err = artifact.CredentialsOf(data, o.Artifact); err != nil {
			return fmt.Errorf("%s: %w", o.Credentials, err)
		}
	}
	digest, err := artifact.Push(ctx, o.Artifact, files, credentials)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.Err, "pushed %s@%s\n", o.Artifact, digest)
	next := &kontrol.Artifact{Reference: o.Artifact + "@" + digest}
	if was := b.Spec.Source.Artifact; was != nil {
		next.PullSecret = was.PullSecret
	}
	b.Spec.Source = kontrol.BundleSource{Artifact: next}
	return nil
}

// previewPush prints how a push would change the objects in the Bundle's current Resources.
func (c *cluster) previewPush(ctx context.Context, b *kontrol.Bundle, objects []bundle.Object, what string,
	t command.Terminal) error {
	check := b.DeepCopy()
	var err error
	if b.ResourceVersion == "" {
		err = c.Client.Create(ctx, check, ctrl.DryRunAll)
	} else {
		err = c.Client.Update(ctx, check, ctrl.DryRunAll)
	}
	if err != nil {
		return err
	}
	has, err := c.contentOf(ctx, b)
	if err != nil {
		return err
	}
	same := true
	for i := range objects {
		o := &objects[i]
		equal, err := printDiff(t.Out, "present "+o.Target.String(), o.From+" "+o.Target.String(), readable(has[o.Key()]),
			readable(object.Parse(o.JSON)))
		if err != nil {
			return err
		}
		same = same && equal
		delete(has, o.Key())
	}
	for _, key := range slices.Sorted(maps.Keys(has)) {
		same = false
		if _, err := printDiff(t.Out, "present "+key, "(removed)", readable(has[key]), nil); err != nil {
			return err
		}
	}
	if same {
		what += ", as they are"
	}
	_, err = fmt.Fprintf(t.Err, "bundle %s: %s (dry run)\n", b.Name, what)
	return err
}

// contentOf returns the objects of a Bundle's Resources by key, each from the first cluster that has it.
func (c *cluster) contentOf(ctx context.Context, b *kontrol.Bundle) (map[string]map[string]any, error) {
	out := map[string]map[string]any{}
	list, err := c.resourcesOf(ctx, b)
	if err != nil {
		return nil, err
	}
	for i := range list {
		key := (&bundle.Object{Target: kontrol.TargetOf(&list[i])}).Key()
		if out[key] == nil {
			out[key] = object.Parse(list[i].Spec.Template.Raw)
		}
	}
	return out, nil
}

func (c *cluster) resourcesOf(ctx context.Context, b *kontrol.Bundle) (out []kontrol.Resource, err error) {
	options := &ctrl.ListOptions{Limit: command.Page}
	ctrl.MatchingLabels{kontrol.LabelBundle: b.Name}.ApplyToList(options)
	for {
		var some kontrol.ResourceList
		if err := c.Client.List(ctx, &some, options); err != nil {
			return nil, err
		}
		for i := range some.Items {
			if metav1.IsControlledBy(&some.Items[i], b) {
				out = append(out, some.Items[i])
			}
		}
		if options.Continue = some.Continue; options.Continue == "" {
			return out, nil
		}
	}
}
