package registry

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/state/store"
)

// A full store is not reported as 503, which clients would retry: objects have to be deleted first.
func TestAFullStoreHasAStatusOfItsOwn(t *testing.T) {
	err := status(fmt.Errorf("%w: delete objects", store.ErrFull), schema.GroupResource{Resource: "pods"}, "a")
	var s apierrors.APIStatus
	require.ErrorAs(t, err, &s)
	require.EqualValues(t, http.StatusInsufficientStorage, s.Status().Code)
	require.Contains(t, s.Status().Message, "it is full: delete objects")
	require.False(t, apierrors.IsServiceUnavailable(err))
	require.True(t, apierrors.IsServiceUnavailable(status(store.ErrUnavailable, schema.GroupResource{}, "")))
}
