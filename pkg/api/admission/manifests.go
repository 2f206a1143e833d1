package admission

import (
	"fmt"
	"os"
	"path/filepath"

	registration "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/initializer"
	policies "k8s.io/kubernetes/pkg/admission/plugin/policy/manifest/loader"
	webhooks "k8s.io/kubernetes/pkg/admission/plugin/webhook/manifest/loader"
)

// Bounds of a directory of webhooks or policies. Each change of a file, and each minute, reads all of them.
const (
	maxManifests     = 1000
	maxManifestBytes = 8 << 20
)

// manifestLoaders returns upstream's loaders of webhooks and policies from files (KEP-5793), which have no bound of
// their own.
func manifestLoaders() *initializer.ManifestLoaders {
	return &initializer.ManifestLoaders{
		LoadValidatingWebhookManifests: func(dir string) ([]*registration.ValidatingWebhookConfiguration, string, error) {
			found, err := within(dir, webhooks.LoadValidatingManifests)
			if err != nil {
				return nil, "", err
			}
			return found.Configurations, found.Hash, nil
		},
		LoadMutatingWebhookManifests: func(dir string) ([]*registration.MutatingWebhookConfiguration, string, error) {
			found, err := within(dir, webhooks.LoadMutatingManifests)
			if err != nil {
				return nil, "", err
			}
			return found.Configurations, found.Hash, nil
		},
		LoadValidatingPolicyManifests: func(dir string) ([]*registration.ValidatingAdmissionPolicy,
			[]*registration.ValidatingAdmissionPolicyBinding, string, error) {
			found, err := within(dir, policies.LoadValidatingManifestsFromDirectory)
			if err != nil {
				return nil, nil, "", err
			}
			return found.Policies, found.Bindings, found.Hash, nil
		},
		LoadMutatingPolicyManifests: func(dir string) ([]*registration.MutatingAdmissionPolicy,
			[]*registration.MutatingAdmissionPolicyBinding, string, error) {
			found, err := within(dir, policies.LoadMutatingManifestsFromDirectory)
			if err != nil {
				return nil, nil, "", err
			}
			return found.Policies, found.Bindings, found.Hash, nil
		},
	}
}

// within loads a directory that is within the bounds.
func within[T any](dir string, load func(string) (T, error)) (found T, err error) {
	if err := checkManifests(dir); err != nil {
		return found, err
	}
	return load(dir)
}

// checkManifests refuses a directory that is beyond the bounds, and what is neither a file nor a directory in it: a
// pipe could block for ever.
func checkManifests(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(maxManifests + 1)
	_ = d.Close()
	if len(names) > maxManifests {
		return fmt.Errorf("%s has more than %d files", dir, maxManifests)
	}
	if len(names) == 0 { // io.EOF
		return nil
	}
	if err != nil {
		return err
	}
	var total int64
	for _, name := range names {
		// configured by the administrator: a link is allowed, as in a mounted ConfigMap
		f, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !f.Mode().IsRegular() && !f.IsDir() {
			return fmt.Errorf("%s is not a regular file", filepath.Join(dir, name))
		}
		if total += f.Size(); total > maxManifestBytes {
			return fmt.Errorf("the files of %s have more than %d bytes", dir, maxManifestBytes)
		}
	}
	return nil
}
