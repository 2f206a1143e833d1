package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

func buildbarnImages(t *testing.T) []string {
	t.Helper()
	if os.Getenv("CORACLE_TEST_BUILDBARN") == "" {
		t.Skip("Buildbarn is compiled for minutes: `make buildbarn`, a part of make nightly, runs this test with " +
			"CORACLE_TEST_BUILDBARN=1")
	}
	dir := os.Getenv("BUILDBARN_IMAGES")
	if dir == "" {
		dir = filepath.Join(host.Root(t), "dist/images-buildbarn")
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	require.NoError(t, err)
	require.NotEmpty(t, archives,
		"no images of Buildbarn in %s: run `make buildbarn-images`, or name a folder with OCI archives (*.tar) with "+
			"BUILDBARN_IMAGES", dir)
	return archives
}

// loadBuildbarn loads the archives on a host and logs the images. It returns whether they include the browser,
// which `make buildbarn-images` cannot compile.
func loadBuildbarn(t *testing.T, h *host.Host) (browser bool) {
	t.Helper()
	archives := buildbarnImages(t)
	loaded := h.Run(append([]string{"image", "load"}, archives...)...)
	t.Logf("Buildbarn's programs are from %s:\n%s", filepath.Dir(archives[0]), loaded)
	for _, name := range []string{
		buildbarn.ImageStorage, buildbarn.ImageScheduler, buildbarn.ImageWorker, buildbarn.ImageInstaller,
	} {
		require.Contains(t, loaded, "loaded "+name+"\n",
			"no archive in %s has the image %s, which is the default: tag it so, or unset BUILDBARN_IMAGES",
			filepath.Dir(archives[0]), name)
	}
	return strings.Contains(loaded, "loaded "+buildbarn.ImageBrowser+"\n")
}
