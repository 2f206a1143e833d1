// Command reference writes the pages of the manual that are generated from the source: metrics and events. Run it in
// the root of the repository.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/coracle-dev/coracle/hack/reference/scan"
)

func main() {
	metrics, events, err := scan.Source(".", "pkg", "cmd")
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range scan.Pages(metrics, events) {
		if err := os.WriteFile(filepath.Join("pkg/cli/manual/pages/reference", name), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
