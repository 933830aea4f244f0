//! Folders with a sub-folder of PNG or JPEG images for each class, decoded and resized to what the model reads.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};
use rayon::prelude::*;

use super::CorpusError;
use super::folders::{IMAGE_EXTENSIONS, entries, is_called};
use super::held_out::mark_of;
use super::image_shape::ImageShape;
use super::prepared::{Key, open_or_write, unwritable};

/// Images that are decoded at once, on all threads.
const BATCH: usize = 256;

/// The names of all sub-folders of `roots`, sorted: the classes of a run that names none.
///
/// # Errors
/// When a folder cannot be read or has no sub-folder.
pub(super) fn class_names(roots: &[PathBuf]) -> Result<Vec<String>, CorpusError> {
    let mut names = Vec::new();
    for folder in sub_folders(roots)? {
        names.push(name_of(&folder));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// (pixels, labels, marks) of all images, class by class. An image is named by its class and its file, wherever that lies: one
/// more image moves the numbers of all classes behind it.
///
/// # Errors
/// When a sub-folder is no class, or an image cannot be read.
pub(super) fn open(
    roots: &[PathBuf],
    class_names: &[String],
    shape: ImageShape,
    folder: Option<&Path>,
) -> Result<(Bytes, Vec<u32>, Vec<u64>), CorpusError> {
    let (mut files, mut labels, mut marks) = (Vec::new(), Vec::new(), Vec::new());
    for class in sub_folders(roots)? {
        let Some(label) = class_names.iter().position(|name| *name == name_of(&class)) else {
            return Err(CorpusError::UnknownClass(class, class_names.join(", ")));
        };
        let images = entries(&class)?.into_iter().filter(|path| is_image(path) && !is_empty(path));
        for image in images {
            marks.push(mark_of(&[name_of(&class).as_bytes(), name_of(&image).as_bytes()]));
            files.push(image);
        }
        labels.resize(files.len(), label as u32);
    }
    if files.is_empty() {
        return Err(CorpusError::NothingIn(roots[0].clone(), "PNG or JPEG image"));
    }
    let mut key = Key::new("images");
    key.add(format!("{shape:?}").as_bytes());
    files.iter().try_for_each(|file| key.add_file(file))?;
    let pixels = open_or_write(folder, &key, |file, place| write(&files, shape, file, place))?;
    Ok((pixels, labels, marks))
}

/// `place`: the folder that is written in.
fn write(files: &[PathBuf], shape: ImageShape, writer: &mut BufWriter<File>, place: &Path) -> Result<(), CorpusError> {
    for batch in files.chunks(BATCH) {
        let decoded: Vec<Vec<u8>> = batch.par_iter().map(|path| decode(path, shape)).collect::<Result<_, _>>()?;
        writer.write_all(&decoded.concat()).map_err(|error| unwritable(place, error))?;
    }
    Ok(())
}

/// The pixels of an image, channel by channel.
fn decode(path: &Path, shape: ImageShape) -> Result<Vec<u8>, CorpusError> {
    let image = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let image = image.map_err(|source| CorpusError::Unreadable(path.to_owned(), source))?.decode();
    let mut image = image.map_err(|error| CorpusError::NotAnImage(path.to_owned(), error.to_string()))?;
    let (rows, columns) = (shape.height as u32, shape.width as u32);
    if (image.height(), image.width()) != (rows, columns) {
        image = image.resize_exact(columns, rows, FilterType::Triangle);
    }
    Ok(if shape.channels == 1 { image.into_luma8().into_raw() } else { by_channel(image) })
}

fn by_channel(image: DynamicImage) -> Vec<u8> {
    let pixels = image.into_rgb8().into_raw();
    (0..3).flat_map(|channel| pixels.iter().skip(channel).step_by(3).copied()).collect()
}

fn sub_folders(roots: &[PathBuf]) -> Result<Vec<PathBuf>, CorpusError> {
    if roots.is_empty() {
        return Err(CorpusError::NoFiles);
    }
    let mut folders = Vec::new();
    for root in roots {
        let before = folders.len();
        let entries = if root.is_file() { Vec::new() } else { entries(root)? };
        folders.extend(entries.into_iter().filter(|path| path.is_dir()));
        if folders.len() == before {
            return Err(CorpusError::NothingIn(root.clone(), "sub-folder, one for each class"));
        }
    }
    Ok(folders)
}

/// An empty file is left out, as in other folders of data.
fn is_empty(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.len() == 0)
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_image(path: &Path) -> bool {
    is_called(path, &IMAGE_EXTENSIONS) && path.is_file()
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, Luma, Rgb, RgbImage};

    use super::*;

    const SHAPE: ImageShape = ImageShape { channels: 1, height: 4, width: 6 };

    #[test]
    fn classes_are_sub_folders_and_images_come_in_the_models_size() {
        let root = tempfile::tempdir().expect("a folder");
        for class in ["cat", "dog"] {
            std::fs::create_dir(root.path().join(class)).expect("a folder");
        }
        GrayImage::from_pixel(6, 4, Luma([7])).save(root.path().join("cat/a.png")).expect("written");
        RgbImage::from_pixel(60, 40, Rgb([200, 200, 200])).save(root.path().join("dog/b.JPG")).expect("written");
        std::fs::write(root.path().join("dog/notes.txt"), "no image").expect("written");
        let roots = [root.path().to_owned()];
        let names = class_names(&roots).expect("two classes");
        assert_eq!(names, ["cat", "dog"]);
        let (pixels, labels, marks) = open(&roots, &names, SHAPE, None).expect("images");
        assert_eq!(labels, [0, 1]);
        assert_eq!(pixels[..24], [7; 24]);
        assert!(pixels[24..].len() == 24 && pixels[24..].iter().all(|value| value.abs_diff(200) < 4), "{pixels:?}");
        let colours = ImageShape { channels: 3, ..SHAPE };
        assert_eq!(open(&roots, &names, colours, None).expect("images").0.len(), 2 * 3 * 24);
        // One more image of an earlier class moves the numbers of all behind it, and no mark.
        GrayImage::from_pixel(6, 4, Luma([9])).save(root.path().join("cat/b.png")).expect("written");
        let of_more = open(&roots, &names, SHAPE, None).expect("images").2;
        assert_eq!([of_more[0], of_more[2]], marks[..]);
    }

    #[test]
    fn what_is_no_image_or_no_class_is_named() {
        let root = tempfile::tempdir().expect("a folder");
        let roots = [root.path().to_owned()];
        let image = root.path().join("1.png");
        std::fs::write(&image, b"\x89PNG").expect("written");
        for given in [&roots[0], &image] {
            let error = class_names(std::slice::from_ref(given)).expect_err("no classes");
            assert!(error.to_string().contains("holds no sub-folder") && error.remedy().contains("/CLASS/"), "{error}");
        }
        std::fs::create_dir(root.path().join("cat")).expect("a folder");
        let message = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            open(&roots, &names, SHAPE, None).expect_err("wrong").to_string()
        };
        assert!(message(&["cat"]).contains("holds no PNG or JPEG image"));
        assert!(message(&["dog"]).ends_with("cat is none of the run's classes: dog"));
        std::fs::write(root.path().join("cat/a.png"), b"\x89PNG\r\n\x1a\ncut off").expect("written");
        assert!(message(&["cat"]).contains("a.png"));
    }
}
