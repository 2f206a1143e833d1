// Command web answers every request on port 80 with a page that contains its argument.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
)

func main() {
	page := fmt.Sprintf("<html><head><title>%[1]s</title></head><body><h1>%[1]s</h1></body></html>\n", os.Args[1])
	log.Fatal(http.ListenAndServe(":80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, page)
	})))
}
