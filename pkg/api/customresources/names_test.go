package customresources

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

func wanting(plural, shortName string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.org"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org",
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural:     plural,
				Singular:   plural[:1],
				ShortNames: []string{shortName},
				Kind:       plural,
				ListKind:   plural + "List",
			}},
	}
}

// A definition holds a name from its acceptance, even before the status is stored, until it is deleted or has
// another name. Then waiting definitions are retried.
func TestNamesAreOneDefinitions(t *testing.T) {
	n := newNames(nil)
	a, b := wanting("apples", "x"), wanting("berries", "x")
	served, retry := n.accept(a)
	require.True(t, served)
	require.Empty(t, retry)
	second := b.DeepCopy()
	served, _ = n.accept(second)
	require.False(t, served, "it was given away, though it is not stored yet")
	require.Empty(t, n.written(second), "nothing became free")
	require.Empty(t, n.written(a), "nothing became free")

	again := wanting("apples", "x")
	served, retry = n.accept(again)
	require.True(t, served, "its own names are no conflict when its status could not be written")
	require.Equal(t, []string{b.Name}, retry)

	renamed := again.DeepCopy()
	renamed.Spec.Names.ShortNames = []string{"y"}
	served, _ = n.accept(renamed)
	require.True(t, served)
	served, _ = n.accept(b.DeepCopy())
	require.False(t, served, "until the new name is stored, both are taken")
	require.Equal(t, []string{b.Name}, n.written(renamed))
	second = b.DeepCopy()
	served, _ = n.accept(second)
	require.True(t, served)
	require.Empty(t, n.written(second))
	require.Empty(t, n.gone(b.Name), "nobody waits")
	require.Empty(t, n.gone(a.Name))
	require.Empty(t, n.groups, "nothing is kept of definitions that are gone")
}

func rowOf(plural string) *kind.Resource {
	return own.Untyped{
		Kind:     schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: plural},
		Plural:   plural,
		Singular: plural[:1],
	}.Row()
}

// slow is a subscriber that blocks changes of the catalog.
type slow struct{ begun, goOn chan struct{} }

func (s slow) Prepare(context.Context, *kind.Table) error {
	s.begun <- struct{}{}
	<-s.goOn
	return nil
}
func (slow) Settle(*kind.Table) {}

// Changes that are requested during another one are combined. An invalid one fails alone.
func TestChangesAreMadeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := kind.NewCatalog(kind.MustTable())
		held := slow{make(chan struct{}), make(chan struct{})}
		_, unsubscribe := kinds.Subscribe(held)
		c := newChanges(kinds)
		first := rowOf("firsts")
		errs := make([]error, 12)
		var making sync.WaitGroup
		making.Go(func() { errs[0] = c.make(t.Context(), nil, []*kind.Resource{first}) })
		<-held.begun
		for i := 1; i < 11; i++ {
			making.Go(func() { errs[i] = c.make(t.Context(), nil, []*kind.Resource{rowOf(fmt.Sprintf("k%d", i))}) })
		}
		making.Go(func() { errs[11] = c.make(t.Context(), []*kind.Resource{rowOf("unknown")}, nil) })
		synctest.Wait()
		changed := 0
		held.goOn <- struct{}{}
		done := make(chan struct{})
		go func() { making.Wait(); close(done) }()
		for running := true; running; {
			select {
			case <-held.begun:
				changed++
				held.goOn <- struct{}{}
			case <-done:
				running = false
			}
		}
		unsubscribe()
		require.ErrorIs(t, errs[11], kind.ErrNoRow)
		require.NoError(t, errors.Join(errs[:11]...))
		require.Len(t, kinds.Table().All(), 11)
		require.Equal(t, 10, changed, "together they fail before they are prepared, and then each is made alone")

		making = sync.WaitGroup{}
		_, unsubscribe = kinds.Subscribe(held)
		defer unsubscribe()
		making.Go(func() { _ = c.make(t.Context(), []*kind.Resource{first}, nil) })
		<-held.begun
		for i := 1; i < 11; i++ {
			making.Go(func() {
				errs[i] = c.make(t.Context(), []*kind.Resource{kinds.Table().ByGVR(rowOf(fmt.Sprintf("k%d", i)).GVR())}, nil)
			})
		}
		synctest.Wait()
		held.goOn <- struct{}{}
		<-held.begun
		held.goOn <- struct{}{}
		making.Wait()
		require.NoError(t, errors.Join(errs[:11]...))
		require.Empty(t, kinds.Table().All())
	})
}
