package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Records stores which credentials images were pulled with, so that an image on the node is usable only for pods that
// could pull it (KEP-2535 with the default policy NeverVerifyPreloadedImages). It is safe for concurrent use.
type Records struct {
	dir string

	mu    sync.Mutex
	byID  map[string]*record
	going map[string]int // pulls in progress, by reference
	// damaged are the names of unreadable records. Their images were pulled, so that pods must pull them again.
	damaged map[string]bool
}

// Limits of records. Beyond maxSecrets the oldest are removed, and their pods pull again.
const (
	maxRecord     = 1 << 20 // bytes of a file
	maxSecrets    = 100     // secrets, and service accounts, per repository, as in the kubelet
	maxRecordRepo = 100     // repositories per image
)

type record struct {
	Image string
	// Repositories are the repositories from which it was pulled, with the access to each.
	Repositories map[string]*access
}

type access struct {
	// Public means that it was pulled without a credential or with the node's.
	Public   bool              `json:",omitempty"`
	Secrets  []keyring.Secret  `json:",omitempty"`
	Accounts []keyring.Account `json:",omitempty"`
}

// intent is written before a pull, so that an image whose pull was killed does not count as preloaded.
type intent struct{ Ref string }

const (
	recordPrefix, intentPrefix = "image-", "pull-"
	recordSuffix               = ".json"
)

// OpenRecords reads the records in a directory, and creates the directory if necessary. It removes damaged files,
// except records of images.
func OpenRecords(dir string) (*Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r := &Records{dir: dir, byID: map[string]*record{}, going: map[string]int{}, damaged: map[string]bool{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		data, err := bounded.File(path, maxRecord)
		if err == nil {
			err = r.take(e.Name(), data)
		}
		if err == nil {
			continue
		}
		if strings.HasPrefix(e.Name(), recordPrefix) && strings.HasSuffix(e.Name(), recordSuffix) {
			r.damaged[e.Name()] = true
		} else if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Records) take(name string, data []byte) error {
	switch {
	case strings.HasPrefix(name, recordPrefix):
		var rec record
		if err := json.Unmarshal(data, &rec); err != nil {
			return err
		}
		if rec.Image == "" || name != fileOf(recordPrefix, rec.Image) {
			return errors.New("a record of another image")
		}
		r.byID[rec.Image] = &rec
		return nil
	case strings.HasPrefix(name, intentPrefix):
		var i intent
		if err := json.Unmarshal(data, &i); err != nil {
			return err
		}
		r.going[i.Ref]++
		return nil
	}
	return errors.New("not a record")
}

func fileOf(prefix, key string) string { return prefix + keyring.Sum(key) + recordSuffix }

// write is durable: an image whose record is lost in a power failure would count as preloaded, and be for all pods.
func (r *Records) write(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return atomicfile.WriteDurably(filepath.Join(r.dir, name), data)
}

func (r *Records) begin(ref string) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.going[ref]++; r.going[ref] > 1 {
		return nil
	}
	return r.write(fileOf(intentPrefix, ref), intent{ref})
}

// end is called after a pull. with is nil for a pull without a credential, id is empty for a failed pull.
func (r *Records) end(ref, id string, with *keyring.Credential) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != "" {
		if err := r.allow(id, ref, with); err != nil {
			return err // the intent remains, so the image does not count as preloaded
		}
	}
	if r.going[ref]--; r.going[ref] > 0 {
		return nil
	}
	delete(r.going, ref)
	err := os.Remove(filepath.Join(r.dir, fileOf(intentPrefix, ref)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// allow adds access to an image's record. Called with the lock held.
func (r *Records) allow(id, ref string, with *keyring.Credential) error {
	repository := repositoryOf(ref)
	rec := r.byID[id]
	if rec == nil {
		rec = &record{Image: id, Repositories: map[string]*access{}}
	}
	a := rec.Repositories[repository]
	if a == nil {
		if len(rec.Repositories) >= maxRecordRepo {
			return fmt.Errorf("image %s was pulled from more than %d repositories", id, maxRecordRepo)
		}
		a = &access{}
	}
	next := *a
	switch {
	case with == nil || with.Everyones():
		next.Public = true
	case with.Account != keyring.Account{}:
		next.Accounts = appended(a.Accounts, with.Account)
	default:
		next.Secrets = appended(a.Secrets, with.Secret)
	}
	a = &next
	rec.Repositories[repository] = a
	r.byID[id] = rec
	delete(r.damaged, fileOf(recordPrefix, id))
	return r.write(fileOf(recordPrefix, id), rec)
}

// appended returns the list with one more element, without the oldest if there are more than maxSecrets.
func appended[T comparable](list []T, one T) []T {
	if slices.Contains(list, one) {
		return list
	}
	list = append(slices.Clone(list), one)
	return list[max(len(list)-maxSecrets, 0):]
}

func repositoryOf(ref string) string {
	if named, err := reference.ParseNormalizedNamed(ref); err == nil {
		return named.Name()
	}
	return ref
}

// needsPull reports whether a pod has to pull a present image to verify its access with the credentials of ask.
func (r *Records) needsPull(ref string, img runtime.Image, ask func() []keyring.Credential) (bool, error) {
	if r == nil || img.Pinned { // pinned images were loaded from a file for all pods
		return false, nil
	}
	public, may, known := r.allowed(ref, img.ID)
	if public || !known {
		return !public, nil
	}
	for _, c := range ask() {
		if slices.Contains(may.Accounts, c.Account) {
			return false, nil
		}
		if c.Secret == (keyring.Secret{}) {
			continue
		}
		for _, s := range may.Secrets {
			same := s.UID == c.Secret.UID && s.Namespace == c.Secret.Namespace && s.Name == c.Secret.Name
			hash := s.Hash != "" && s.Hash == c.Secret.Hash
			if same && hash {
				return false, nil
			}
			if same || hash { // a rotated secret or a copy of one: record it
				r.mu.Lock()
				defer r.mu.Unlock()
				return false, r.allow(img.ID, ref, &c)
			}
		}
	}
	return true, nil
}

// allowed returns who may use an image without a pull. known is false if the image was pulled from another repository
// or by a process that was killed before it recorded the pull; then public says whether it was preloaded.
func (r *Records) allowed(ref, id string) (public bool, may access, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.byID[id]
	if rec == nil {
		return r.going[ref] == 0 && !r.damaged[fileOf(recordPrefix, id)], access{}, false // preloaded images are public
	}
	a := rec.Repositories[repositoryOf(ref)]
	if a == nil {
		return false, access{}, false
	}
	return a.Public, *a, true
}

func (r *Records) prune(list []runtime.Image) error {
	if r == nil {
		return nil
	}
	have, files := map[string]bool{}, map[string]bool{}
	for _, img := range list {
		have[img.ID], files[fileOf(recordPrefix, img.ID)] = true, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.going) > 0 { // the list may lack an image that is being pulled
		return nil
	}
	var errs []error
	for file := range r.damaged {
		if !files[file] {
			delete(r.damaged, file)
			errs = append(errs, os.Remove(filepath.Join(r.dir, file)))
		}
	}
	for id := range r.byID {
		if have[id] {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir, fileOf(recordPrefix, id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(r.byID, id)
	}
	return errors.Join(errs...)
}

// recover completes the records of interrupted pulls, so that only pods that can pull the images may use them.
func (r *Records) recover(get func(ref string) (runtime.Image, error)) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for ref := range r.going {
		img, err := get(ref)
		if err != nil && !errors.Is(err, runtime.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		if err == nil && r.byID[img.ID] == nil {
			rec := &record{Image: img.ID, Repositories: map[string]*access{}}
			if err := r.write(fileOf(recordPrefix, img.ID), rec); err != nil {
				errs = append(errs, err)
				continue
			}
			r.byID[img.ID] = rec
		}
		delete(r.going, ref)
		if err := os.Remove(filepath.Join(r.dir, fileOf(intentPrefix, ref))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
