// Command schema writes the schema of Buildbarn's configurations in the pinned modules into the file that
// pkg/systems/buildbarn/schema embeds: go run ./schema ../../pkg/systems/buildbarn/schema/buildbarn.binpb.gz
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"
)

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: schema FILE"))
	}
	set, err := Set()
	if err != nil {
		fail(err)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		fail(err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		fail(err)
	}
	if _, err = w.Write(raw); err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(os.Args[1], packed.Bytes(), 0o644)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "schema:", err)
	os.Exit(1)
}
