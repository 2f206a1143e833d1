package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
)

// Revision is a current or former content of a Resource.
type Revision struct {
	Revision   int64 `json:"revision"`
	Generation int64 `json:"generation"`
	// ReplacedAt is nil for the current revision.
	ReplacedAt *metav1.Time `json:"replacedAt,omitempty"`
	// Changed has the fields that differ from the previous revision, if that is known.
	Changed   []string             `json:"changed,omitempty"`
	Template  runtime.RawExtension `json:"template"`
	Overrides []kontrol.Override   `json:"overrides,omitempty"`
}

// content returns the readable object, with the overrides as an additional field.
func (v *Revision) content() map[string]any {
	o := readable(object.Parse(v.Template.Raw))
	if len(v.Overrides) == 0 || o == nil {
		return o
	}
	raw, err := json.Marshal(map[string]any{"overrides": v.Overrides})
	if err != nil {
		return o
	}
	o["overrides"] = object.Parse(raw)["overrides"]
	return o
}

func revisions(r *kontrol.Resource) []Revision {
	list := []Revision{
		{Revision: kontrol.RevisionOf(r), Generation: r.Generation, Template: r.Spec.Template, Overrides: r.Spec.Overrides},
	}
	for i := range r.Status.History {
		h := &r.Status.History[i]
		list = append(list, Revision{
			Revision:   h.Revision,
			Generation: h.Generation,
			ReplacedAt: &h.ReplacedAt,
			Template:   h.Template,
			Overrides:  h.Overrides,
		})
	}
	for i := range len(list) - 1 {
		list[i].Changed = changed(object.Parse(list[i+1].Template.Raw), object.Parse(list[i].Template.Raw), "")
		if !equality.Semantic.DeepEqual(list[i+1].Overrides, list[i].Overrides) {
			list[i].Changed = append(list[i].Changed, "overrides")
		}
	}
	return list
}

// changed returns the sorted paths of the differing fields. A list whose length differs counts as one field.
func changed(was, is any, path string) []string {
	if reflect.DeepEqual(was, is) {
		return nil
	}
	switch is := is.(type) {
	case map[string]any:
		before, ok := was.(map[string]any)
		if !ok {
			break
		}
		keys := maps.Clone(is)
		maps.Copy(keys, before)
		var out []string
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			step := "." + k
			if strings.ContainsAny(k, "./") {
				step = fmt.Sprintf("[%q]", k)
			}
			out = append(out, changed(before[k], is[k], path+step)...)
		}
		return out
	case []any:
		before, ok := was.([]any)
		if !ok || len(before) != len(is) {
			break
		}
		var out []string
		for i := range is {
			out = append(out, changed(before[i], is[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return out
	}
	return []string{path}
}

// listed is how many changed fields a line of the history shows.
const listed = 3

// History prints the revisions of a Resource.
func (c *cluster) History(ctx context.Context, name, format string, out io.Writer) error {
	r, err := c.getResource(ctx, name)
	if err != nil {
		return err
	}
	list := revisions(r)
	if format != "" {
		return command.PrintAs(out, format, list)
	}
	now := time.Now()
	return command.Table(out, "REVISION\tGENERATION\tREPLACED\tCHANGED", func(line func(...any)) {
		for i, v := range list {
			replaced, fields := "present", strings.Join(v.Changed, ", ")
			if v.ReplacedAt != nil {
				replaced = command.Ago(v.ReplacedAt, now) + " ago"
			}
			if n := len(v.Changed); n > listed {
				fields = fmt.Sprintf("%s, and %d more", strings.Join(v.Changed[:listed], ", "), n-listed)
			}
			switch last := i == len(list)-1; {
			case last && v.Generation > 1:
				fields = "(the oldest that is kept)"
			case !last && fields == "":
				fields = "(not the object)"
			}
			line(v.Revision, v.Generation, replaced, fields)
		}
	})
}

// former returns the latest former content with the revision or, if that is 0, with the generation.
func former(r *kontrol.Resource, revision, generation int64) (*Revision, error) {
	list := revisions(r)
	var has []string
	for i := range list {
		v := &list[i]
		if i > 0 && (revision > 0 && v.Revision == revision || revision == 0 && v.Generation == generation) {
			return v, nil
		}
		if i > 0 {
			has = append(has, fmt.Sprint(v.Revision))
		}
	}
	switch {
	case len(has) == 0:
		return nil, fmt.Errorf("resource %s has no former revision", r.Name)
	case revision > 0:
		return nil, fmt.Errorf("resource %s has no former revision %d: it has %s", r.Name, revision, strings.Join(has, ", "))
	}
	return nil, fmt.Errorf("resource %s has no former generation %d: `coracle kontrol history %s` lists them", r.Name,
		generation, r.Name)
}

// RollbackOptions are the options of `coracle kontrol rollback`.
type RollbackOptions struct {
	Name string
	// Revision or Generation selects the former content.
	Revision, Generation int64
	// DryRun prints what would change, and changes nothing.
	DryRun bool
}

// Rollback restores a former content of a Resource and its revision number. If the current content has the same
// number, the number increases instead. The generation always increases.
func (c *cluster) Rollback(ctx context.Context, o RollbackOptions, t command.Terminal) error {
	if (o.Revision > 0) == (o.Generation > 0) {
		return errors.New("give either --to REVISION or --to-generation GENERATION, above 0")
	}
	if o.DryRun {
		r, err := c.getResource(ctx, o.Name)
		if err != nil {
			return err
		}
		to, err := former(r, o.Revision, o.Generation)
		if err != nil {
			return err
		}
		_, err = diffRevisions(r, &revisions(r)[0], to, t.Out)
		return err
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		r, err := c.getResource(ctx, o.Name)
		if err != nil {
			return err
		}
		if b := r.Labels[kontrol.LabelBundle]; b != "" {
			return fmt.Errorf("resource %s belongs to bundle %s, which would undo the rollback: push the former files "+
				"of the bundle with `coracle kontrol push`", r.Name, b)
		}
		to, err := former(r, o.Revision, o.Generation)
		if err != nil {
			return err
		}
		was := kontrol.RevisionOf(r)
		r.Spec.Template, r.Spec.Overrides, r.Spec.Revision = to.Template, to.Overrides, &to.Revision
		if err := c.Client.Update(ctx, r); err != nil {
			return err
		}
		_, err = fmt.Fprintf(t.Out, "resource %s rolled back from revision %d to %d (generation %d)\n", r.Name, was,
			kontrol.RevisionOf(r), r.Generation)
		return err
	})
}
