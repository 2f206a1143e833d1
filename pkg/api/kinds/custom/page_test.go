package custom

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A conversion webhook gets each object once, in pages of bounded number and size.
func TestPagesOfConversion(t *testing.T) {
	pages := func(sizes ...int) (counts []int) {
		var list []client.Object
		for _, n := range sizes {
			list = append(list, &unstructured.Unstructured{Object: map[string]any{"data": []any{strings.Repeat("x", n)}}})
		}
		for len(list) > 0 {
			page := firstPage(list)
			counts, list = append(counts, len(page)), list[len(page):]
		}
		return counts
	}
	require.Equal(t, []int{3}, pages(1, 1, 1))
	require.Equal(t, []int{maxPage, maxPage, 1}, pages(make([]int, 2*maxPage+1)...))
	require.Equal(t, []int{1, 1, 2}, pages(3*maxPageSize, maxPageSize, 10, 10), "a single object may be larger")
	require.Equal(t, []int{2, 1}, pages(maxPageSize/3, maxPageSize/3, maxPageSize/2))
}
