package kind

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Printer prints objects, or lists of objects, of one row's served version. Each table row contains its object.
type Printer struct {
	Row *Resource
	// Print returns the cells of one object, with column definitions if headers is set.
	Print func(o client.Object, headers bool) (*metav1.Table, error)
}

var _ rest.TableConvertor = (*Printer)(nil)

// ConvertToTable prints an object or a list. Options are *metav1.TableOptions or nil.
func (p *Printer) ConvertToTable(_ context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	o, _ := options.(*metav1.TableOptions)
	headers := o == nil || !o.NoHeaders
	out := &metav1.Table{Rows: []metav1.TableRow{}}
	add := func(item runtime.Object) error {
		one, err := p.Print(item.(client.Object), headers && out.ColumnDefinitions == nil)
		if err != nil {
			return err
		}
		if one.ColumnDefinitions != nil {
			out.ColumnDefinitions = one.ColumnDefinitions
		}
		for i := range one.Rows {
			one.Rows[i].Object.Object = item
		}
		out.Rows = append(out.Rows, one.Rows...)
		return nil
	}
	if !meta.IsListType(obj) {
		if m, ok := obj.(client.Object); ok {
			out.ResourceVersion = m.GetResourceVersion()
		}
		return out, add(obj)
	}
	if l, ok := obj.(metav1.ListInterface); ok {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = l.GetResourceVersion(), l.GetContinue(),
			l.GetRemainingItemCount()
	}
	if err := meta.EachListItem(obj, add); err != nil {
		return nil, err
	}
	if headers && out.ColumnDefinitions == nil { // an empty list has headers too
		one, err := p.Print(p.Row.New(), true)
		if err != nil {
			return nil, err
		}
		out.ColumnDefinitions = one.ColumnDefinitions
	}
	return out, nil
}
