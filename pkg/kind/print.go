package kind

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// table prints objects, or lists of objects, of one row's served version. Each
// row of the answer carries the object it was given.
type table struct {
	row   *Resource
	print func(*Resource, client.Object, bool) (*metav1.Table, error)
}

// ConvertToTable prints an object or a list. Options are *metav1.TableOptions or nil.
func (t *table) ConvertToTable(_ context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	o, _ := options.(*metav1.TableOptions)
	headers := o == nil || !o.NoHeaders
	out := &metav1.Table{Rows: []metav1.TableRow{}}
	add := func(item runtime.Object) error {
		one, err := t.print(t.row, item.(client.Object), headers && out.ColumnDefinitions == nil)
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
		out.ResourceVersion, out.Continue, out.RemainingItemCount = l.GetResourceVersion(), l.GetContinue(), l.GetRemainingItemCount()
	}
	if err := meta.EachListItem(obj, add); err != nil {
		return nil, err
	}
	if headers && out.ColumnDefinitions == nil { // an empty list has headers too
		one, err := t.print(t.row, t.row.New(), true)
		if err != nil {
			return nil, err
		}
		out.ColumnDefinitions = one.ColumnDefinitions
	}
	return out, nil
}

// upstreamColumns is built when the first table is asked for: a server that nobody looks at need not hold it.
var upstreamColumns = sync.OnceValue(func() *printers.HumanReadableGenerator {
	return printers.NewTableGenerator().With(printersinternal.AddHandlers)
})

func printInternal(r *Resource, o client.Object, headers bool) (*metav1.Table, error) {
	in, err := r.Internal(o)
	if err != nil {
		return nil, err
	}
	return upstreamColumns().GenerateTable(in, printers.GenerateOptions{Wide: true, NoHeaders: !headers})
}

// namesOnly is for kinds that upstream gives no columns beyond name and creation time.
func namesOnly(gr schema.GroupResource) rest.TableConvertor { return rest.NewDefaultTableConvertor(gr) }
